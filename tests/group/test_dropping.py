"""A group that nobody has any more gives everything back, closed or not."""

import gc

import numpy as np
import pytest

from phalanx.coordinator import Coordinator, Terms
from phalanx.group import Join, alone, connect
from phalanx.testing import World
from phalanx.transport import Deadline
from usage import Usage

TIMES = 200


def use(group):
    array = group.allocate(100_000)
    array[:] = 1
    group.all_reduce(array)
    group.all_reduce_nowait(array).wait()
    assert group.enqueue("adding up", array.sum).wait() == np.float32(100_000 * group.size**2)


@pytest.mark.slow
def test_groups_of_one_are_gone_when_they_are_dropped():
    use(alone())
    before = Usage()

    for _ in range(TIMES):
        use(alone())

    before.wait_until_back()


@pytest.mark.slow
def test_groups_with_a_coordinator_leave_when_they_are_dropped():
    def join_and_drop():
        with Coordinator(terms=Terms.exactly(1)) as coordinator:
            use(connect(Join(coordinator=(coordinator.address,), rank=0, size=1)))
            coordinator.close_when_left(Deadline.after(30))

    join_and_drop()
    before = Usage()

    for _ in range(TIMES):
        join_and_drop()

    before.wait_until_back()


@pytest.mark.slow
def test_subgroups_are_gone_when_they_are_dropped():
    def work(group):
        def use_subgroup():
            use(group.subgroup([1, 0]))

        use_subgroup()
        group.barrier()
        before = Usage()
        for _ in range(TIMES):
            use_subgroup()
        before.wait_until_back()

    for over in ("arena", "tcp"):
        World(2, over, processes=True).run(work)


def test_a_subgroup_keeps_its_group():
    def work(group):
        subgroup = group.subgroup([0, 1]).subgroup([1, 0])  # of a group that nobody else has
        gc.collect()
        return float(subgroup.all_reduce(np.ones(1))[0])

    assert World(2, "arena").run(work) == [2.0, 2.0]


def test_what_works_on_a_group_is_neither_kept_alive_nor_forgotten():
    class Companion:
        closed = 0

        def close(self):
            Companion.closed += 1

    group = alone()
    kept, dropped = Companion(), Companion()
    for each in (kept, dropped):
        group.companions.add(each)
        group.on_close(each.close)

    del dropped, each
    gc.collect()

    assert list(group.companions) == [kept]
    group.close()
    assert Companion.closed == 1


def test_what_is_enqueued_runs_in_order_and_its_error_reaches_who_waits():
    def work(group):
        array, seen = np.ones(4), []
        pending = [
            group.all_reduce_nowait(array),
            group.enqueue("looking", lambda: seen.append(array[0])),
            group.all_reduce_nowait(array),
            group.enqueue("failing", lambda: 1 / 0),
        ]
        for each in pending[:3]:
            each.wait()
        try:
            pending[3].wait()
        except ZeroDivisionError:
            seen.append(group.all_reduce(array)[0])
        return seen

    assert World(2, "memory").run(work) == [[2.0, 8.0]] * 2

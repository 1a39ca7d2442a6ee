"""The life of a group: calls in flight, subgroups, memory, statistics, and the end."""

import re
import resource
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from phalanx.errors import CollectiveMismatch, LinkClosed
from phalanx.group import alone
from phalanx.testing import World

each_world = pytest.mark.parametrize("over", ["memory", "tcp", "arena"])


@each_world
def test_calls_in_flight_finish_in_order_with_their_own_results(over):
    def on_rank(group):
        arrays = [np.full(1000 + number, float(number + group.rank)) for number in range(20)]
        pending = [group.all_reduce_nowait(array) for array in arrays]
        last = group.all_reduce(np.array([1.0]))  # stands in line behind them

        assert all(each.is_done for each in pending)
        for number, each in enumerate(pending):
            result = each.wait()
            assert result is arrays[number]
            assert np.all(result == 3 * number + 3)
        return last.tolist()

    assert World(3, over).run(on_rank) == [[3.0]] * 3


@each_world
def test_every_call_has_a_form_that_does_not_wait(over):
    def on_rank(group):
        rows = np.arange(4.0).reshape(2, 2)
        out = np.empty(2)
        pending = [
            group.all_reduce_nowait(np.ones(2)),
            group.reduce_scatter_nowait(np.ones(2)),
            group.all_gather_nowait(np.ones(1)),
            group.all_gather_unequal_nowait(np.ones(1 + group.rank)),
            group.broadcast_nowait(np.full(2, float(group.rank)), 1),
            group.reduce_nowait(np.ones(2)),
            group.gather_nowait(np.ones(1)),
            group.scatter_nowait(rows if group.rank == 0 else None, out),
            group.all_to_all_nowait(np.arange(2.0)),
            group.barrier_nowait(),
            group.send_nowait(np.ones(1), 1 - group.rank),
            group.recv_nowait(np.zeros(1), 1 - group.rank),
        ]
        results = [each.wait(timeout_s=20) for each in pending]
        return [np.asarray(result).tolist() for result in results if isinstance(result, np.ndarray)]

    first, second = World(2, over).run(on_rank)

    assert first == [[2, 2], [2], [[1], [1]], [1, 1], [2, 2], [[1], [1]], [0, 1], [0, 0], [1]]
    assert second == [[2, 2], [2], [[1], [1]], [1, 1], [1, 1], [2, 3], [1, 1], [1]]


def test_threads_may_call_while_others_wait():
    def on_rank(group):
        results = {}

        def call(number):
            results[number] = group.send_nowait(np.array([float(number)]), 1) if group.rank == 0 else None

        threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if group.rank == 1:
            return sorted(group.recv(np.zeros(1), 0)[0] for _ in range(8))
        return [pending.wait() for pending in results.values()]

    assert World(2, "tcp").run(on_rank)[1] == list(range(8))


class LateCounter(Counter):
    """A counter that makes threads that count at the same time wait for each other, if nothing keeps them apart."""

    def __init__(self, threads):
        super().__init__()
        self._together = threading.Barrier(threads)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        with suppress(threading.BrokenBarrierError):
            self._together.wait(0.05)


@each_world
def test_threads_that_make_subgroups_at_the_same_time_do_not_wait_for_each_other(over):
    def on_rank(group):
        group._times_asked = LateCounter(2)

        def use_subgroup(_):
            with group.subgroup([0, 1]) as pair:
                return float(pair.all_reduce(np.ones(1))[0])

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(use_subgroup, range(2)))

    assert World(2, over, timeout_s=5).run(on_rank) == [[2.0, 2.0]] * 2


@each_world
def test_subgroups_work_side_by_side_and_number_ranks_as_listed(over):
    def on_rank(group):
        even = group.rank % 2 == 0
        ranks = [4, 2, 0] if even else [1, 3]
        with group.subgroup(ranks) as team, group.subgroup(ranks) as again:
            total = team.all_reduce(np.array([float(group.rank)]))
            pending = again.all_reduce_nowait(np.array([1.0]))
            whole = group.all_reduce(np.array([1.0]))
            assert (team.size, ranks[team.rank]) == (len(ranks), group.rank)
            return [total[0], pending.wait()[0], whole[0]]

    assert World(5, over).run(on_rank) == [[6, 3, 5], [4, 2, 5], [6, 3, 5], [4, 2, 5], [6, 3, 5]]


def test_a_group_of_one_does_everything_without_a_network():
    with alone() as group:
        array = np.arange(3.0)

        assert (group.rank, group.size, group.hosts) == (0, 1, ((0,),))
        for op in ("sum", "mean", "max", "min", "product"):
            assert group.all_reduce(array, op).tolist() == [0, 1, 2]
        assert group.all_gather(array).tolist() == [[0, 1, 2]]
        assert [part.tolist() for part in group.all_gather_unequal(array)] == [[0, 1, 2]]
        assert group.reduce_scatter(array).tolist() == [0, 1, 2]
        assert group.broadcast(array).tolist() == group.reduce(array).tolist() == [0, 1, 2]
        assert group.gather(array).tolist() == [[0, 1, 2]]
        assert group.scatter(array[None], np.zeros(3)).tolist() == [0, 1, 2]
        assert group.all_to_all(array).tolist() == [0, 1, 2]
        assert group.all_reduce(group.allocate(2), out=group.allocate(2, shared=True)).tolist() == [0, 0]
        assert group.subgroup([0]).all_reduce_nowait(array, wire=None).wait() is array
        group.barrier()


@each_world
def test_what_was_begun_is_finished_before_a_group_closes(over):
    def on_rank(group):
        pending = [group.all_reduce_nowait(np.full(100_000, 1.0)) for _ in range(5)]
        group.close()
        return [each.wait()[0] for each in pending]

    assert World(2, over).run(on_rank) == [[2.0] * 5] * 2


@each_world
def test_closing_twice_is_harmless_and_a_closed_group_says_so(over):
    def on_rank(group):
        group.barrier()
        group.close()
        group.close()
        with pytest.raises(LinkClosed, match="closed on this side"):
            group.barrier()

    World(2, over).run(on_rank)


def test_statistics_count_calls_bytes_and_waiting():
    def on_rank(group):
        group.barrier()
        before = group.statistics()
        group.all_reduce(np.ones(1000, np.float32))
        group.all_reduce(np.ones(1000, np.float32))
        after = group.statistics()
        assert after.calls["all_reduce"] - before.calls.get("all_reduce", 0) == 2
        assert after.seconds > before.seconds
        assert set(after.waited_s) == {1 - group.rank}
        return [after.bytes_sent - before.bytes_sent, after.bytes_received - before.bytes_received]

    for sent, received in World(2, "tcp").run(on_rank):
        assert sent == received == 2 * (64 + 4000)  # two ranks send each other everything in one message


def test_a_slow_rank_is_named_in_the_statistics_of_the_others():
    asleep = threading.Event()

    def on_rank(group):
        group.barrier()
        if group.rank == 2:
            asleep.wait(0.2)  # never set: a rank that is slow
        group.barrier()
        return max(group.statistics().waited_s.items(), key=lambda entry: entry[1])[0]

    assert World(3, "arena").run(on_rank)[:2] == [2, 2]


@each_world
def test_explain_says_how_and_why(over):
    def on_rank(group):
        return str(group.explain("all_reduce", 1 << 26))

    words = World(4, over).run(on_rank)

    assert len(set(words)) == 1
    assert "because" in words[0]
    assert words[0].startswith("shared" if over == "arena" else "direct")


def test_memory_of_an_arena_is_at_most_one_extra_copy_for_the_host():
    size, length = 3, 8 << 20

    def on_rank(group):
        source = group.allocate(length, "u8")
        result = group.allocate(length, "u8", shared=True)
        source[:] = 1
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        group.all_reduce(source, out=result)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        group.barrier()
        return [grown_kib * 1024, int(result.sum())]

    outcomes = World(size, "arena", processes=True).run(on_rank)

    for grown, total in outcomes:
        # What a rank touches: its part of the result, and the same part of every peer's buffer. No private copies.
        assert grown < length / size * size + (4 << 20)
        assert total == size * length


@pytest.mark.parametrize("over", ["arena", "tcp"])
def test_a_rank_knows_its_number_on_its_machine_whether_or_not_memory_is_shared(over):
    def on_rank(group):
        return group.local_rank, group.local_size

    world = World(4, over, hosts=["a", "b", "a", "a"])

    assert world.run(on_rank) == [(0, 3), (0, 1), (1, 3), (2, 3)]


def test_a_group_says_who_and_where_it_is():
    def on_rank(group):
        return repr(group), group.master

    (first, master), (second, other) = World(2, "arena").run(on_rank)

    assert re.fullmatch(r"<Group: rank 0 of 2, local rank 0 of 2 on \S+, epoch 1>", first)
    assert second.startswith("<Group: rank 1 of 2, local rank 1 of 2 on ")
    assert master == other
    assert master[0] == "127.0.0.1"


def test_a_group_says_that_it_is_closed_or_has_failed():
    def on_rank(group):
        with suppress(CollectiveMismatch):
            group.all_reduce(np.ones(1 + group.rank))
        failed = repr(group)
        group.close()
        return failed, repr(group)

    for failed, closed in World(2, "arena").run(on_rank):
        assert "failed: " in failed
        assert closed.endswith("epoch 1, closed>")

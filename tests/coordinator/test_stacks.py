"""The Python stacks of a worker, on request, and the time of the coordinator."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from coordinator_play import Play, run_of

from phalanx.coordinator import Coordinator, CoordinatorClient, Terms, ask_stacks, find_awaited
from phalanx.coordinator.decision import Say
from phalanx.coordinator.stacks import describe_stacks
from phalanx.errors import MembershipError
from phalanx.telemetry import ClockEstimate, RecordBatch, RecordCollector, encode_batch, read_workers
from phalanx.transport import Credentials, Deadline
from phalanx.wire import AskStacks, Hello, Stacks, Standing, Status

LOOKER = 99
WORKERS = {0: 10, 1: 11}  # the connections of ranks in ``run_of``


def test_the_question_goes_to_the_worker_and_its_answer_to_all_who_asked():
    play = run_of(2)

    assert play.say(LOOKER, AskStacks(1)) == [Say((WORKERS[1],), AskStacks(1))]
    play.say(LOOKER + 1, AskStacks(1))
    assert play.say(WORKERS[1], Stacks(1, "busy")) == [Say((LOOKER, LOOKER + 1), Stacks(1, "busy"))]

    assert play.say(WORKERS[1], Stacks(1, "busy")) == []


def test_a_worker_cannot_answer_for_another():
    play = run_of(2)
    play.say(LOOKER, AskStacks(1))

    assert play.say(WORKERS[0], Stacks(1, "lies")) == []


def test_who_asks_for_nobody_is_told_so():
    assert Play().say(LOOKER, AskStacks(7)) == [Say((LOOKER,), Stacks(7, "there is no rank 7 now"))]


def status_of(**waits):
    """A status in which rank 0 waits for the ranks in ``r0``, and so on."""
    return Status(
        epoch=1,
        step=3,
        words="",
        workers=tuple(
            Standing(int(name[1:]), "", "", 1, "", 1, None, 0.0, is_done=False, waits_for=ranks, doing="")
            for name, ranks in waits.items()
        ),
    )


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (status_of(r0=(), r1=()), None),
        (status_of(r0=(1,), r1=()), (1, (0,))),
        (status_of(r0=(1,), r1=(2,), r2=(), r3=(2,)), (2, (0, 1, 3))),
        (status_of(r0=(1,), r1=(0,)), (1, (0,))),
    ],
)
def test_the_rank_at_the_end_of_all_waiting_is_found(status, expected):
    assert find_awaited(status) == expected


def hang_here(started, ended):
    started.set()
    ended.wait(60)


def test_stacks_show_what_every_thread_does_and_are_never_too_long():
    started, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=hang_here, args=(started, ended), name="hanging")
    thread.start()
    started.wait(60)

    told = describe_stacks()
    deep = _deep(400)
    ended.set()
    thread.join()

    assert told.startswith("thread MainThread:")
    assert "thread hanging:" in told
    assert "in hang_here" in told
    assert len(deep) <= 60_000
    assert "in describe_stacks" in deep, "the innermost calls stay"


def _deep(depth):
    """The stacks from deep in a recursion, of which no two calls in a row are the same."""
    return describe_stacks() if depth == 0 else (_deep if depth % 2 else _deeper)(depth - 1)


def _deeper(depth):
    return _deep(depth)


def join(stack, coordinator):
    client = stack.enter_context(closing(CoordinatorClient([coordinator.address], Deadline.after(10))))
    hello = Hello(host="anvil", addresses=(), pid=1, rank=None, size=None, job="")
    stack.enter_context(closing(client.join(hello, Deadline.after(10))[1]))
    return client


def test_telemetry_of_a_worker_is_written_where_the_coordinator_is(tmp_path):
    batch = RecordBatch("far:1", ("training",), 0, None, 0, 0, bytes(32))
    with ExitStack() as stack:
        records = stack.enter_context(closing(RecordCollector(tmp_path)))
        coordinator = stack.enter_context(Coordinator(terms=Terms.exactly(1), records=records))
        client = join(stack, coordinator)

        client.send_records(encode_batch(batch))
        client.leave()  # behind the records

        coordinator.close_when_left(Deadline.after(10))
    assert [each.worker for each in read_workers(tmp_path)] == ["far:1"]


def test_damaged_telemetry_costs_a_worker_its_place(tmp_path):
    with ExitStack() as stack:
        records = stack.enter_context(closing(RecordCollector(tmp_path)))
        coordinator = stack.enter_context(Coordinator(terms=Terms.exactly(1), records=records))
        client = join(stack, coordinator)

        client.send_records(b"nonsense")

        with pytest.raises(MembershipError, match="telemetry that is damaged"):
            client.wait_for_word(Deadline.after(10))


def test_a_worker_tells_its_stacks_and_learns_the_time_over_its_connection():
    with ExitStack() as stack:
        coordinator = stack.enter_context(Coordinator(terms=Terms.exactly(1)))
        client = join(stack, coordinator)
        clock = ClockEstimate()
        client.keep_clock(clock)

        with ThreadPoolExecutor(1) as pool:
            told = pool.submit(ask_stacks, coordinator.address, Deadline.after(10), Credentials(), 0).result()

        assert "test_a_worker_tells_its_stacks" in told
        assert "thread phalanx-epoch" in told
        deadline = Deadline.after(10)
        while clock.is_unsure and not deadline.has_passed:
            threading.Event().wait(0.001)
        found = clock.at(time.monotonic_ns())
        assert abs(found.offset_ns) <= found.uncertainty_ns, "both read the same clock"

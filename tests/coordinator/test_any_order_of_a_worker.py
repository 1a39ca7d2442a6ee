"""A worker, in any order of events."""

from coordinator_play import PATIENCE_S, STALL_S, plain_hello, run_hello, welcome
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.coordinator.participant import Abandon, Apply, Begin, Participant, Stop, Tell
from phalanx.wire import Ask, Cause, Commit, Done, Evict, Halt, Heard, Left, Reason, Refused, Revoked

epochs, steps, digests = st.integers(1, 3), st.integers(0, 2), st.sampled_from([b"a", b"b"])
messages = st.one_of(
    st.builds(welcome, epochs, steps),
    st.builds(Commit, steps, digests),
    st.builds(Revoked, epochs, st.sampled_from(Cause), st.integers(0, 2), st.just("words")),
    st.builds(Halt, steps, st.sampled_from(Reason), st.none(), st.just("words")),
    st.sampled_from([Heard(PATIENCE_S, STALL_S), Ask(), Left(1), Evict("words"), Refused("words")]),
)
events = st.one_of(
    st.tuples(st.just("hear"), messages),
    st.tuples(st.just("done"), epochs, digests),
    st.tuples(st.just("hold"), epochs, steps),
    st.sampled_from([("reached",), ("lost",), ("tick",), ("wait",), ("leave",)]),
)


def perform(worker, script):
    """Every move that follows from a script, in order."""
    now = 0.0
    for what, *details in script:
        now += 1.0
        match what:
            case "hear":
                yield from worker.hear(details[0], now)
            case "done":
                yield from worker.done(details[0], 0.5, details[1])
            case "hold":
                yield from worker.hold(*details)
            case "reached":
                yield from worker.reached(now)
            case "lost":
                yield from worker.lost("closed", now)
            case "leave":
                yield from worker.leave()
            case "wait":
                now += 20.0
            case "tick":
                yield from worker.tick(now)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from([plain_hello(), run_hello("w0")]), st.lists(events, max_size=30))
def test_no_order_of_events_raises_or_applies_what_this_worker_was_not_done_with(hello, script):
    moves = list(perform(Participant(hello), [("reached",), *script]))

    pending, is_in = None, False
    for move in moves:
        match move:
            case Tell(message=Done(step=step, digest=digest)):
                assert is_in, "nobody is done outside an epoch"
                pending = Commit(step, digest)
            case Apply(commit=commit):
                assert commit == pending
                pending = None
            case Begin():
                assert not is_in, "an epoch ends before the next begins"
                is_in = True
            case Abandon():
                assert is_in, "an epoch ends once"
                is_in = False
    assert sum(isinstance(move, Stop) for move in moves) <= 1


@settings(deadline=None, max_examples=200)
@given(st.lists(events, max_size=20))
def test_a_tick_at_its_time_moves_the_next_one(script):
    worker = Participant(run_hello("w0"))
    list(perform(worker, [("reached",), *script]))

    for _ in range(20):
        due = worker.next_tick
        if due is None:
            return
        worker.tick(due)
        assert worker.next_tick is None or worker.next_tick > due

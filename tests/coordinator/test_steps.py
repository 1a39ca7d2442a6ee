"""Whether a step counts."""

import pytest
from coordinator_play import only, recorded, run_hello, run_of, told
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.coordinator.blame import Culprit
from phalanx.coordinator.decision import Record, Say
from phalanx.coordinator.record import Committed, Ended
from phalanx.coordinator.steps import Steps
from phalanx.wire import Cause, Commit, Done, Halt, Leave, Reason

NEXT = "start all workers again from the last checkpoint, with a new journal"


def done(step=0, digest=b"same", epoch=1):
    return Done(epoch=epoch, step=step, loss=0.25, digest=digest)


def test_a_step_counts_when_everybody_is_done_and_not_before():
    steps = Steps(0, None)

    outcomes = [steps.hear(rank, done(), 3, now=0.0) for rank in (2, 0, 1)]

    assert outcomes == [None, None, Commit(0, b"same")]
    assert (steps.step, steps.last, steps.dones) == (1, Commit(0, b"same"), {})


def test_who_says_twice_that_it_is_done_counts_once():
    steps = Steps(0, None)

    outcomes = [steps.hear(0, done(), 2, now=0.0), steps.hear(0, done(), 2, now=0.0)]

    assert outcomes == [None, None]


def test_what_was_done_in_another_epoch_is_void():
    steps = Steps(4, None)
    steps.hear(0, done(4), 2, now=0.0)

    steps.begin(4)

    assert steps.hear(1, done(4), 2, now=0.0) is None


@pytest.mark.parametrize(
    ("digests", "odd", "other", "suspects"),
    [
        ([b"a", b"a", b"b"], 2, 0, "the machine of rank 2"),
        ([b"b", b"a", b"a"], 0, 1, "the machine of rank 0"),
        ([b"a", b"b", b"c"], 0, 1, "the machine of rank 0"),
        ([b"a", b"b"], 0, 1, "both machines"),
    ],
)
def test_ranks_that_did_not_do_the_same_halt_and_the_odd_one_is_named(digests, odd, other, suspects):
    steps = Steps(7, None)

    *_, outcome = [steps.hear(rank, done(7, digest), len(digests), now=0.0) for rank, digest in enumerate(digests)]

    words = f"rank {odd} has other weights than rank {other} at step 7 "
    words += f"(digest {digests[odd].hex()}, not {digests[other].hex()}): {NEXT}, and look at {suspects}"
    assert outcome == Culprit(Cause.DISAGREED, odd, words)
    assert (steps.step, steps.last) == (7, None)


def test_digests_that_differ_only_at_their_end_are_shown_whole():
    steps = Steps(7, None)
    steps.hear(0, done(7, b"12345678a"), 2, now=0.0)

    outcome = steps.hear(1, done(7, b"12345678b"), 2, now=0.0)

    assert f"(digest {b'12345678a'.hex()}, not {b'12345678b'.hex()})" in outcome.words


@settings(deadline=None)
@given(st.permutations(range(4)), st.integers(0, 3), st.booleans())
def test_the_order_in_which_ranks_are_done_does_not_matter(order, odd, is_odd):
    steps = Steps(0, None)

    *early, last = [
        steps.hear(rank, done(digest=b"x" if is_odd and rank == odd else b"y"), 4, now=0.0) for rank in order
    ]

    assert early == [None] * 3
    assert (last.rank if is_odd else last) == (odd if is_odd else Commit(0, b"y"))


# As the coordinator says it


def test_a_commit_is_written_down_before_it_is_said_to_everybody():
    play = run_of(2)
    early = play.say(10, done())

    decisions = play.say(11, done())

    assert early == []
    assert decisions == [Record(Committed(1, 0, b"same", 0.25)), Say((10, 11), Commit(0, b"same"))]
    assert play.membership.step == 1


def test_steps_are_committed_one_after_the_other():
    play = run_of(2)

    decisions = [each for _ in range(5) for each in play.finish_step(11, 10)]

    assert [line.step for line in recorded(decisions)] == [0, 1, 2, 3, 4]


def test_who_is_done_in_an_epoch_that_is_over_is_not_heard():
    play = run_of(2)
    play.say(10, done())
    play.hang_up(11)
    play.say(21, run_hello("w1"))

    decisions = [*play.say(10, done(epoch=1)), *play.say(21, done(epoch=1))]

    assert decisions == []
    assert only(play.finish_step(10, 21), Commit) == Commit(0, b"same")


def test_nothing_is_committed_in_an_epoch_that_was_revoked():
    play = run_of(3)
    play.say(10, done())
    play.hang_up(12)

    assert play.say(11, done()) == []
    assert play.membership.step == 0


def test_who_waits_to_be_admitted_cannot_be_done():
    play = run_of(1)
    play.say(20, run_hello("spare"))

    assert play.say(20, done()) == []


def test_ranks_that_differ_halt_everybody_and_nothing_is_committed():
    play = run_of(2)
    play.say(10, done(digest=b"mine"))

    decisions = play.say(11, done(digest=b"other"))

    halt = only(decisions, Halt)
    assert (halt.reason, halt.rank) == (Reason.DIVERGED, 0)
    assert halt.words.endswith("; rank 0 is process 7 on w0")
    assert recorded(decisions) == [Ended(halt.words)]
    assert told(decisions, Commit) == {}


def test_who_has_left_is_not_told_that_its_last_step_counts():
    play = run_of(2)
    play.say(10, done())
    play.say(10, Leave())

    decisions = play.say(11, done())

    assert told(decisions, Commit) == {11: Commit(0, b"same")}

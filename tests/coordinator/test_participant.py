"""A worker's side of the membership: epochs, steps and the end."""

import pytest
from coordinator_play import ending, member, plain_hello, plain_member, run_hello, welcome

from phalanx.coordinator.participant import Abandon, Apply, Begin, HangUp, Participant, Stop, Tell
from phalanx.errors import (
    BadFrame,
    CollectiveMismatch,
    DeadlineExceeded,
    EpochChanged,
    Evicted,
    GradientCorrupted,
    Halted,
    JoinRefused,
    NonFiniteGradient,
    PeerLost,
    ProtocolError,
    RemoteError,
    StateLost,
    WeightsDiverged,
)
from phalanx.wire import Ask, Cause, Commit, Done, Evict, Halt, Holds, Leave, Left, Reason, Refused, Revoked

# Joining


def test_a_worker_says_hello_when_it_has_reached_the_coordinator():
    hello = run_hello("w0", step=3)

    assert Participant(hello).reached(0.0) == [Tell(hello)]


def test_an_epoch_begins_with_a_welcome():
    worker = Participant(run_hello("w0"))
    worker.reached(0.0)

    moves = worker.hear(welcome(epoch=4), 0.1)

    assert moves == [Begin(welcome(epoch=4))]
    assert worker.epoch == 4


@pytest.mark.parametrize("hello", [plain_hello(), run_hello("w0")])
def test_who_is_refused_is_through(hello):
    worker = Participant(hello)
    worker.reached(0.0)

    hung_up, *stop = worker.hear(Refused("rank 0 is taken"), 0.1)

    assert hung_up == HangUp()
    assert ending(stop) == (JoinRefused, "the coordinator refused this worker: rank 0 is taken")
    assert worker.next_tick is None


# A plain group


def test_a_plain_group_is_over_without_its_coordinator():
    worker = plain_member(whom="the coordinator, which rank 0 runs,", peer=0)

    abandoned, stopped = worker.lost("connection reset", 1.0)

    assert (type(abandoned), type(stopped)) == (Abandon, Stop)
    assert ending([stopped]) == (PeerLost, "the coordinator, which rank 0 runs, went away: connection reset")
    assert stopped.error.peer == 0
    assert worker.next_tick is None


def test_who_was_evicted_from_a_plain_group_is_through():
    moves = plain_member().hear(Evict("rank 0 was given up"), 1.0)

    assert [type(move) for move in moves] == [HangUp, Abandon, Stop]
    assert ending(moves) == (Evicted, "the coordinator removed this worker: rank 0 was given up")


@pytest.mark.parametrize(
    ("cause", "error"),
    [
        (Cause.LOST, PeerLost),
        (Cause.LEFT, PeerLost),
        (Cause.RAISED, PeerLost),
        (Cause.GARBLED, BadFrame),
        (Cause.STALLED, DeadlineExceeded),
        (Cause.DISAGREED, CollectiveMismatch),
    ],
)
def test_the_end_of_a_plain_group_is_an_error_that_names_the_culprit(cause, error):
    (move,) = plain_member().hear(Revoked(1, cause, 2, "words"), 1.0)

    assert ending([move]) == (error, "words")
    assert isinstance(move, Abandon)
    assert move.error.peer == 2


# Epochs of a run


@pytest.mark.parametrize("cause", list(Cause))
def test_the_end_of_an_epoch_of_a_run_only_means_to_do_the_step_again(cause):
    (move,) = member().hear(Revoked(1, cause, 2, "words"), 1.0)

    assert ending([move]) == (EpochChanged, "words")
    assert isinstance(move, Abandon)


def test_the_end_of_another_epoch_is_not_heard():
    assert member().hear(Revoked(2, Cause.LOST, 2, "words"), 1.0) == []


def test_an_epoch_ends_once():
    worker = member()
    worker.hear(Revoked(1, Cause.LOST, 2, "words"), 1.0)

    again = worker.hear(welcome(epoch=2), 1.1)

    assert again == [Begin(welcome(epoch=2))]


def test_a_new_epoch_ends_the_one_before():
    abandoned, begun = member().hear(welcome(epoch=2), 1.0)

    assert ending([abandoned]) == (EpochChanged, "epoch 2 began")
    assert begun == Begin(welcome(epoch=2))


@pytest.mark.parametrize("message", [Left(1), Ask()])
def test_what_does_not_concern_the_membership_changes_nothing(message):
    assert member().hear(message, 1.0) == []


# Steps


def test_a_step_that_counts_is_applied_once():
    worker = member()
    said = worker.done(1, 0.5, b"digest")

    applied = worker.hear(Commit(0, b"digest"), 1.0)

    assert said == [Tell(Done(1, 0, 0.5, b"digest"))]
    assert applied == [Apply(Commit(0, b"digest"))]
    assert worker.step == 1


@pytest.mark.parametrize("epoch", [0, 2])
def test_nobody_is_told_of_a_step_of_another_epoch(epoch):
    assert member().done(epoch, 0.5, b"digest") == []


def test_nobody_is_told_of_a_step_after_the_epoch_ended():
    worker = member()
    worker.hear(Revoked(1, Cause.LOST, 2, "words"), 1.0)

    assert worker.done(1, 0.5, b"digest") == []


def test_a_step_that_was_done_is_still_pending_after_the_epoch_ended():
    worker = member()
    worker.done(1, 0.5, b"digest")
    worker.lost("connection reset", 1.0)

    worker.reached(2.0)

    assert worker.hear(Commit(0, b"digest"), 2.0) == [Apply(Commit(0, b"digest"))]


@pytest.mark.parametrize("commit", [Commit(1, b"digest"), Commit(0, b"other")])
def test_a_commit_of_something_else_stops_the_worker(commit):
    worker = member()
    worker.done(1, 0.5, b"digest")

    moves = worker.hear(commit, 1.0)

    words = (
        f"the coordinator committed step {commit.step}, but this worker's step 0 has another number or digest: "
        "start it again from its checkpoint, with the coordinator of its own run"
    )
    assert [type(move) for move in moves] == [HangUp, Abandon, Stop]
    assert ending(moves) == (ProtocolError, words)


@pytest.mark.parametrize("is_done", [False, True])
def test_what_was_done_in_another_epoch_cannot_be_committed(is_done):
    worker = member()
    if is_done:
        worker.done(1, 0.5, b"digest")
    worker.hear(welcome(epoch=2), 1.0)

    moves = worker.hear(Commit(0, b"digest"), 1.0)

    assert ending(moves)[0] is ProtocolError


def test_who_got_the_state_from_another_says_so():
    worker = member()

    said = worker.hold(1, 40)

    assert said == [Tell(Holds(1))]
    assert worker.done(1, 0.5, b"digest") == [Tell(Done(1, 40, 0.5, b"digest"))]


def test_who_got_the_state_when_the_epoch_was_over_holds_it_all_the_same():
    worker = member()
    worker.hear(Revoked(1, Cause.LOST, 2, "words"), 1.0)

    said = worker.hold(1, 40)

    assert said == [Tell(Holds(1))]
    assert worker.reached(2.0) == [Tell(run_hello("w0", step=40))]


# The end


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (Reason.NON_FINITE, NonFiniteGradient),
        (Reason.DIVERGED, WeightsDiverged),
        (Reason.CORRUPTED, GradientCorrupted),
        (Reason.STATE_LOST, StateLost),
        (Reason.RAISED, RemoteError),
        (Reason.STUCK, Halted),
        (Reason.UNRECORDED, Halted),
    ],
)
def test_a_halt_stops_the_worker_with_the_error_of_its_reason(reason, error):
    worker = member()

    moves = worker.hear(Halt(7, reason, 2, "words"), 1.0)

    assert [type(move) for move in moves] == [HangUp, Abandon, Stop]
    assert ending(moves) == (error, "words")
    assert (moves[-1].error.step, moves[-1].error.rank) == (7, 2)
    assert worker.next_tick is None


def test_who_halts_tells_the_coordinator_its_step():
    worker = member(run_hello("w0", step=3))

    assert worker.halt(1, Reason.NON_FINITE, 0, "words") == [Tell(Halt(3, Reason.NON_FINITE, 0, "words", epoch=1))]


def test_who_leaves_says_so_and_hears_nothing_more():
    worker = member()

    moves = worker.leave()

    assert moves == [Tell(Leave()), HangUp()]
    assert worker.next_tick is None
    assert [*worker.tick(100.0), *worker.lost("closed", 100.0), *worker.hear(welcome(epoch=2), 100.0)] == []

"""A worker reports what it waits for, and comes back."""

from coordinator_play import PATIENCE_S, STALL_S, ending, member, run_hello

from phalanx.coordinator.participant import Abandon, HangUp, Participant, Reconnect, ReportWait, Stop, Tell
from phalanx.errors import ConnectError, Evicted, PeerLost
from phalanx.wire import Evict, Heard, Reason

REJOIN_S = 60.0


# Reporting


def test_a_member_reports_every_second_what_it_waits_for():
    worker = member()

    reports = []
    for _ in range(3):
        now = worker.next_tick
        reports.append((now, worker.tick(now)))

    assert reports == [(now, [ReportWait()]) for now in (1.0, 2.0, 3.0)]


def test_nothing_happens_before_its_time():
    worker = member()

    assert worker.tick(0.9) == []


def test_a_worker_that_waits_to_be_admitted_has_nothing_to_report():
    worker = Participant(run_hello("w0"))
    worker.reached(0.0)
    worker.hear(Heard(PATIENCE_S, STALL_S), 0.0)

    assert worker.next_tick is None
    assert worker.tick(100.0) == []


# Coming back


def test_a_worker_of_a_run_calls_again_and_says_which_step_it_holds():
    worker = member(run_hello("w0", step=3))
    worker.done(1, 0.5, b"digest")

    moves = worker.lost("connection reset", 10.0)
    early = worker.tick(10.0)
    called = worker.tick(worker.next_tick)
    hello = worker.reached(11.0)

    assert ending(moves) == (PeerLost, "the coordinator went away: connection reset")
    assert (early, called) == ([], [Reconnect()])
    assert hello == [Tell(run_hello("w0", step=3, pending=b"digest"))]


def test_a_worker_that_left_while_it_called_says_nothing_more():
    worker = member(run_hello("w0"))
    worker.lost("connection reset", 10.0)
    worker.tick(worker.next_tick)
    worker.leave()

    moves = worker.reached(11.0)

    assert moves == [HangUp()]


def test_a_halt_that_may_not_have_been_heard_is_said_again():
    worker = member(run_hello("w0", step=3))
    worker.lost("connection reset", 10.0)
    (halt,) = worker.halt(1, Reason.RAISED, 0, "Traceback ...")

    moves = worker.reached(11.0)

    assert moves == [Tell(run_hello("w0", step=3)), halt]


def test_no_second_call_is_made_while_one_is_under_way():
    worker = member()
    worker.lost("connection reset", 10.0)
    worker.tick(worker.next_tick)

    assert worker.next_tick is None
    assert worker.tick(1000.0) == []


def test_naps_between_calls_double_up_to_the_interval():
    worker = member()
    now, naps = 10.0, []

    for _ in range(8):
        worker.lost("refused", now)
        naps.append(round(worker.next_tick - now, 6))
        now = worker.next_tick
        worker.tick(now)

    assert naps == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_naps_are_short_again_after_a_call_that_succeeded():
    worker = member()
    for now in (10.0, 11.0, 12.0):
        worker.lost("refused", now)
    worker.reached(13.0)
    worker.hear(Heard(PATIENCE_S, STALL_S), 13.0)

    worker.lost("refused", 20.0)

    assert worker.next_tick == 20.05


def test_a_worker_gives_up_when_the_coordinator_stays_away():
    worker = member(run_hello("w0", step=3))
    worker.lost("refused", 10.0)

    early = worker.lost("refused", 10.0 + REJOIN_S)
    moves = worker.lost("refused", 10.1 + REJOIN_S)

    words = "the coordinator went away: refused, and did not take this worker back for 60 s; it holds step 3: "
    words += "start the coordinator again on its journal, then this worker"
    assert early == []
    assert ending(moves) == (ConnectError, words)
    assert isinstance(moves[-1], Stop)
    assert worker.next_tick is None


def test_a_coordinator_that_came_back_may_go_away_again_for_as_long():
    worker = member()
    worker.lost("refused", 10.0)
    worker.reached(60.0)
    worker.hear(Heard(PATIENCE_S, STALL_S), 60.0)

    moves = worker.lost("refused", 60.0 + REJOIN_S)

    assert moves == []


def test_being_reached_without_being_heard_is_not_coming_back():
    worker = member()
    worker.lost("refused", 10.0)
    worker.reached(60.0)

    moves = worker.lost("refused", 11.0 + REJOIN_S)

    assert isinstance(moves[-1], Stop)


def test_who_was_evicted_from_a_run_comes_again():
    worker = member()

    moves = worker.hear(Evict("rank 0 was given up"), 10.0)

    assert moves[0] == HangUp()
    assert ending(moves) == (Evicted, "the coordinator removed this worker: rank 0 was given up")
    assert isinstance(moves[-1], Abandon)
    assert worker.tick(worker.next_tick) == [Reconnect()]

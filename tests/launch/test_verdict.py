import signal

import pytest

from phalanx.launch.verdict import End, first_failure, last_words, report

OWN = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nValueError: boom\n'


def lost(words):
    return f'Traceback (most recent call last):\n  File "x.py", line 9, in <module>\nphalanx.errors.PeerLost: {words}\n'


def end(rank, code=1, at=0.0, stderr="", *, was_stopped=False):
    return End(rank=rank, code=code, at=at, stderr=stderr, was_stopped=was_stopped)


def test_a_run_in_which_all_end_well_has_no_failure():
    assert first_failure([end(0, 0), end(1, 0)]) is None


def test_the_first_to_fail_is_named():
    assert first_failure([end(0, 0, 1.0), end(2, 1, 3.0, OWN), end(1, 1, 2.0, OWN)]).rank == 1


def test_ranks_that_only_lost_a_peer_are_not_the_first_even_if_they_ended_before_it():
    ends = [end(0, 1, 1.0, lost("rank 1 failed: ValueError: boom")), end(1, 1, 2.0, OWN)]

    assert first_failure(ends).rank == 1


def test_a_killed_rank_is_the_first_although_the_others_wrote_more():
    ends = [end(0, 1, 1.0, lost("rank 1 went away")), end(1, -signal.SIGKILL, 1.1)]

    assert first_failure(ends).rank == 1


def test_a_worker_that_was_told_to_go_is_not_the_first():
    ends = [end(1, -signal.SIGTERM, 1.0, was_stopped=True), end(0, 1, 2.0, lost("rank 1 holds everybody up"))]

    assert first_failure(ends).rank == 0


@pytest.mark.parametrize(
    ("stderr", "is_consequence"),
    [
        (lost("rank 1 went away"), True),
        (lost("rank 0: rank 1 hung up"), True),
        (lost("rank 12 went away"), True),
        (lost("rank 0 failed: ValueError: boom"), False),
        (lost("the coordinator went away"), False),
        (lost("rank 1 went away") + OWN, False),
        (OWN, False),
        ("somebody.PeerLost: rank 1\n", False),
        ("", False),
    ],
)
def test_losing_another_rank_is_a_consequence(stderr, is_consequence):
    assert end(0, stderr=stderr).is_consequence is is_consequence


@pytest.mark.parametrize(
    ("code", "status", "manner"),
    [
        (3, 3, "ended with exit code 3"),
        (-signal.SIGKILL, 137, "was killed by SIGKILL"),
        (-signal.SIGSEGV, 139, "was killed by SIGSEGV"),
        (-63, 191, "was killed by signal 63"),
    ],
)
def test_an_end_in_numbers_and_words(code, status, manner):
    ended = end(0, code)

    assert (ended.status, ended.manner) == (status, manner)


def test_the_report_has_the_last_traceback_only():
    told = report(end(3, stderr="a warning\n" + lost("rank 1 went away") + "\nDuring handling ...:\n\n" + OWN))

    assert told == f"phalanx: rank 3 failed first: it ended with exit code 1\n\n{OWN}"


def test_without_a_traceback_the_last_lines_are_reported():
    assert last_words("".join(f"line {number}\n" for number in range(100))).splitlines()[0] == "line 80"


def test_silence_is_reported_as_such():
    assert "wrote nothing" in report(end(0, -signal.SIGKILL))

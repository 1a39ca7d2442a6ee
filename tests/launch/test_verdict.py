import signal

import pytest

from phalanx.launch.verdict import End, Name, judge, last_words

OWN = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nValueError: boom\n'


THEIRS = OWN.rstrip().replace("\n", "\n    ")


def raised(kind, words):
    return f'Traceback (most recent call last):\n  File "x.py", line 9, in <module>\nphalanx.errors.{kind}: {words}\n'


def lost(words):
    return raised("PeerLost", words)


def end(rank, code=1, at=0.0, stderr="", *, was_stopped=False, noun="rank"):
    return End(Name(noun, rank), code=code, at=at, stderr=stderr, was_stopped=was_stopped)


def culprit(*ends):
    return judge(ends).culprit.name.number


def test_a_run_in_which_all_end_well_has_no_verdict():
    assert judge([end(0, 0), end(1, 0)]) is None


def test_the_first_to_fail_is_named():
    assert culprit(end(0, 0, 1.0), end(2, 1, 3.0, OWN), end(1, 1, 2.0, OWN)) == 1


def test_of_two_that_ended_together_the_killed_one_is_the_first():
    assert culprit(end(0, 1, 1.0, OWN), end(1, -signal.SIGSEGV, 1.0)) == 1


def test_ranks_that_only_lost_a_peer_are_not_the_first_even_if_they_ended_before_it():
    assert culprit(end(0, 1, 1.0, lost("rank 1 failed: ValueError: boom")), end(1, 1, 2.0, OWN)) == 1


def test_a_killed_rank_is_the_first_although_the_others_wrote_more():
    assert culprit(end(0, 1, 1.0, lost("rank 1 went away")), end(1, -signal.SIGKILL, 1.1)) == 1


@pytest.mark.parametrize(
    "words",
    [
        raised("NonFiniteGradient", "the gradient of w is not finite at step 7: rank 2 computed it in lane 5"),
        raised("WeightsDiverged", "rank 2 has other weights than rank 0 in w before step 3: look at rank 2"),
        raised("CollectiveMismatch", "rank 2 is in call 3, barrier, but rank 0 is in call 3, all_reduce"),
        raised("BadFrame", "rank 2 sent bytes to rank 0 that are no frame, instead of call 3, barrier"),
        raised("GradientCorrupted", "the sum of w that rank 2 made at step 7 has changed in memory"),
        raised("RemoteError", f"rank 2 failed at step 3:\n    {THEIRS}"),
    ],
)
def test_of_ranks_that_all_say_the_same_the_one_they_name_is_the_first(words):
    assert culprit(*[end(rank, 1, 1.0 + rank, words) for rank in range(4)]) == 2


def test_a_rank_that_had_to_be_stopped_is_the_first_if_the_others_name_it():
    words = raised("DeadlineExceeded", "rank 0 has waited 30.1 s for rank 1, which does nothing: it is stopped")
    verdict = judge([end(0, 1, 1.0, words), end(2, 1, 1.1, words), end(1, -signal.SIGKILL, 5.0, was_stopped=True)])

    assert verdict.culprit.name.number == 1
    assert verdict.witness.status == 1
    assert str(verdict).startswith("phalanx: rank 1 failed first: rank 0 could not go on without it and ended with ex")
    assert str(verdict).endswith(words)


def test_a_worker_that_had_to_be_stopped_and_that_nobody_names_is_not_the_first():
    assert culprit(end(1, -signal.SIGTERM, 1.0, was_stopped=True), end(0, 1, 2.0, lost("rank 2 went away"))) == 0


@pytest.mark.parametrize(
    ("stderr", "is_consequence"),
    [
        (lost("rank 1 went away"), True),
        (lost("rank 0: rank 1 hung up"), True),
        (lost("rank 12 went away"), True),
        (lost("rank 12: rank 0 hung up"), False),
        (lost("worker 1 went away") + "a warning\n", True),
        (raised("DeadlineExceeded", "rank 0 has waited 3 s for rank 1, which does nothing"), True),
        (raised("DeadlineExceeded", "rank 1 has waited 3 s for rank 0, which does nothing"), False),
        (raised("EpochChanged", "rank 0: no answer from rank 0; rank 1 holds everybody up: it does not"), True),
        (raised("RemoteError", f"rank 1 failed at step 3:\n    {THEIRS}"), True),
        (raised("JoinRefused", "the coordinator refused this worker: rank 1 is taken"), False),
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


def test_a_worker_without_a_rank_may_be_lost_to_the_rank_of_its_number():
    assert end(1, stderr=lost("rank 1 went away"), noun="worker").is_consequence


def test_the_report_has_the_last_traceback_only():
    ended = end(3, stderr="a warning\n" + lost("rank 1 went away") + "\nDuring handling ...:\n\n" + OWN)

    assert str(judge([ended])) == f"phalanx: rank 3 failed first: it ended with exit code 1\n\n{OWN}"


def test_the_traceback_of_another_rank_is_reported_with_the_error_that_names_it():
    error = f"phalanx.errors.RemoteError: rank 2 failed at step 3:\n    {THEIRS}" + "\n    more" * 30

    assert last_words(f"a warning\n{error}\n") == error


def test_without_a_traceback_the_last_lines_are_reported():
    assert last_words("".join(f"line {number}\n" for number in range(100))).splitlines()[0] == "line 80"


def test_silence_is_reported_as_such():
    assert "wrote nothing" in str(judge([end(0, -signal.SIGKILL)]))

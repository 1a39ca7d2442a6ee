"""Whose fault a stall is."""

import pytest
from coordinator_play import waiting
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.coordinator.blame import LONGEST_WORDS, Culprit, Inquiry, blame, disagreement, find_stalled
from phalanx.wire import Cause, Failed, Waiting, odd_one_out


@pytest.mark.parametrize(
    ("accuser", "accused", "waits", "culprit"),
    [
        (0, 1, {0: (1,)}, 1),
        (0, 1, {0: (1,), 1: (2,)}, 2),
        (0, 1, {0: (1,), 1: (2,), 2: (3,), 3: ()}, 3),
        (0, 1, {0: (1,), 1: (2,), 2: (0,)}, 1),
        (0, 1, {0: (1,), 1: (0,)}, 1),
        (0, 1, {0: (1,), 1: (2, 3), 2: ()}, 3),
        (0, 1, {0: (1,), 1: (1,)}, 1),
        (0, 0, {0: (0,)}, 0),
    ],
    ids=["silent", "next is silent", "chain", "circle", "each other", "silent first", "itself", "accuses itself"],
)
def test_blame_follows_who_waits_for_whom(accuser, accused, waits, culprit):
    assert blame(accuser, accused, waits) == culprit


ranks = st.integers(0, 5)


@settings(deadline=None)
@given(st.dictionaries(ranks, st.lists(ranks, max_size=3)), ranks, ranks)
def test_blame_always_comes_to_an_end(waits, accuser, accused):
    assert 0 <= blame(accuser, accused, waits) <= 5


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ({}, None),
        ({0: "a"}, None),
        ({0: "a", 1: "a"}, None),
        ({0: "a", 1: "b"}, (0, 1)),
        ({0: "a", 1: "a", 2: "b"}, (2, 0)),
        ({0: "b", 1: "a", 2: "a"}, (0, 1)),
        ({0: "a", 1: "b", 2: "b", 3: "a", 4: "b"}, (0, 1)),
    ],
)
def test_the_odd_one_has_what_the_fewest_have(values, odd):
    assert odd_one_out(values) == odd


def test_ranks_in_the_same_call_of_the_same_group_must_mean_the_same():
    verdict = disagreement({0: waiting(words="barrier"), 1: waiting(words="broadcast"), 2: waiting(words="barrier")})

    words = "rank 1 is in broadcast, but rank 0 is in barrier: "
    words += "all ranks must make the same calls, of the same type and length, in the same order"
    assert verdict == Culprit(Cause.DISAGREED, 1, words)


@pytest.mark.parametrize(
    "other",
    [
        Waiting(1, (), (), "world", 8, "broadcast", 0.0),
        Waiting(1, (), (), "pair", 7, "broadcast", 0.0),
        Waiting(1, (), (), "world", 7, "barrier", 0.0),
    ],
    ids=["another number", "another group", "the same"],
)
def test_ranks_in_different_calls_do_not_disagree(other):
    assert disagreement({0: waiting(words="barrier", sequence=7), 1: other}) is None


def test_ranks_that_are_in_no_call_do_not_disagree():
    assert disagreement({rank: Waiting(1, (), (), "", 0, words, 0.0) for rank, words in ((0, "a"), (1, "b"))}) is None


STALLED = Failed(1, Cause.STALLED, 1, "no answer from rank 1")


@pytest.mark.parametrize(
    ("said", "waits", "verdict"),
    [
        (None, {0: waiting(1)}, None),
        (Failed(1, Cause.LOST, 1, "its link broke"), {}, Culprit(Cause.LOST, 1, "rank 0: its link broke")),
        (
            STALLED,
            {1: waiting(2)},
            Culprit(Cause.STALLED, 2, "no answer from rank 1; rank 2 holds everybody up: it does not answer"),
        ),
        (
            STALLED,
            {1: waiting(2), 2: waiting()},
            Culprit(Cause.STALLED, 2, "no answer from rank 1; rank 2 holds everybody up: it is not in that call"),
        ),
    ],
    ids=["nobody accuses", "lost", "silent", "elsewhere"],
)
def test_an_inquiry_ends_with_a_verdict_if_somebody_is_to_blame(said, waits, verdict):
    inquiry = Inquiry(due=1.0, accuser=None if said is None else 0, said=said, waits=waits)

    assert inquiry.culprit() == verdict


def test_a_disagreement_explains_more_than_an_accusation():
    inquiry = Inquiry(1.0, 0, STALLED, {0: waiting(1, words="barrier"), 1: waiting(0, words="broadcast")})

    assert inquiry.culprit().cause is Cause.DISAGREED


def test_words_are_cut_so_that_any_message_can_hold_them():
    assert Culprit(Cause.LOST, 0, "x" * 9000).words == "x" * LONGEST_WORDS


@pytest.mark.parametrize(
    ("waits", "idle_s", "culprit"),
    [
        ({}, {1: 99.0}, None),
        ({0: {1: 9.9}}, {1: 99.0}, None),
        ({0: {1: 10.0}}, {1: 9.9}, None),
        ({0: {1: 10.0}}, {1: 10.0}, 1),
        ({0: {1: 99.0}, 1: {2: 9.9}}, {2: 99.0}, None),
        ({0: {1: 99.0}, 1: {2: 10.0}}, {2: 99.0}, 2),
        ({0: {1: 99.0, 2: 99.0}}, {1: 0.0, 2: 10.0}, 2),
        ({0: {1: 99.0}, 1: {0: 99.0}}, {}, None),
    ],
    ids=["nobody waits", "not yet", "just fell idle", "now", "waits itself", "chain", "the idle one", "each other"],
)
def test_an_idle_rank_is_to_blame_once_another_has_waited_for_it_for_the_stall_time(waits, idle_s, culprit):
    found = find_stalled(waits, idle_s, dict.fromkeys(range(3), 10.0))

    assert (found and (found.cause, found.rank)) == (culprit and (Cause.STALLED, culprit))


def test_a_stall_is_named_with_who_waited_for_how_long_and_what_to_do():
    found = find_stalled({0: {1: 12.34}}, {1: 12.0}, {0: 10.0})

    words = "rank 0 has waited 12.3 s for rank 1, which does nothing: it is stopped, or stuck; look at that process, "
    assert found.words == words + "or allow more than 10 s with --stall or PHALANX_STALL"

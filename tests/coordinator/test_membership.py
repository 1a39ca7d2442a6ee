import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.coordinator import Drop, Membership, Say, blame
from phalanx.coordinator.membership import GRACE_S
from phalanx.wire import (
    Address,
    Ask,
    Cause,
    Failed,
    Hello,
    Leave,
    Left,
    LinkHello,
    Refused,
    Revoked,
    Waiting,
    Welcome,
    Wonder,
)

KEY = bytes(range(16))
JOB = "night"


def hello(rank=None, size=None, job=JOB, pid=1):
    return Hello(host="anvil", addresses=(Address("10.0.0.7", 4000 + pid),), pid=pid, rank=rank, size=size, job=job)


def waiting(*ranks, words="barrier", sequence=7):
    return Waiting(ranks=ranks, group="world", sequence=sequence, words=words)


def formed(size=3):
    """A complete group, where rank r is behind connection 10 + r."""
    membership = Membership(size, JOB, KEY)
    for rank in range(size):
        membership.hear(10 + rank, hello(rank), now=0.0)
    return membership


def to_ranks(decisions):
    """What each rank is told."""
    return {decision.connection - 10: decision.message for decision in decisions}


def verdict(decisions):
    """The one Revoked that everybody is told."""
    (found,) = {decision.message for decision in decisions}
    assert isinstance(found, Revoked)
    return found


def refusal(decisions, connection):
    said, dropped = decisions
    assert (said.connection, dropped) == (connection, Drop(connection))
    assert isinstance(said.message, Refused)
    return said.message.reason


# Joining


def test_nobody_is_welcome_before_everybody_has_come():
    membership = Membership(3, JOB, KEY)

    assert membership.hear(0, hello(), now=0.0) == []
    assert membership.hear(1, hello(), now=0.0) == []
    assert len(membership.hear(2, hello(), now=0.0)) == 3


def test_everybody_is_told_the_same_and_its_own_rank():
    membership = Membership(2, JOB, KEY)
    membership.hear(7, hello(pid=70), now=0.0)

    decisions = membership.hear(8, hello(pid=80), now=0.0)

    welcomes = {decision.connection: decision.message for decision in decisions}
    assert all(isinstance(welcome, Welcome) for welcome in welcomes.values())
    assert {connection: welcome.rank for connection, welcome in welcomes.items()} == {7: 0, 8: 1}
    assert welcomes[7].members == welcomes[8].members
    assert [(member.rank, member.pid) for member in welcomes[7].members] == [(0, 70), (1, 80)]
    assert {(welcome.epoch, welcome.key) for welcome in welcomes.values()} == {(1, KEY)}


@pytest.mark.parametrize(
    ("asked", "given_ranks"),
    [
        ([None, None, None], [0, 1, 2]),
        ([2, 1, 0], [2, 1, 0]),
        ([None, 0, None], [1, 0, 2]),
        ([2, None, None], [2, 0, 1]),
        ([None, None, 1], [0, 2, 1]),
    ],
)
def test_who_asks_for_a_rank_gets_it_and_the_others_come_in_order(asked, given_ranks):
    membership = Membership(3, JOB, KEY)

    decisions = [
        decision
        for connection, rank in enumerate(asked)
        for decision in membership.hear(connection, hello(rank), now=0.0)
    ]

    assert [decision.message.rank for decision in sorted(decisions, key=lambda each: each.connection)] == given_ranks


def test_the_first_worker_may_say_how_many_there_will_be():
    membership = Membership(None, JOB, KEY)

    membership.hear(0, hello(size=2), now=0.0)

    assert len(membership.hear(1, hello(), now=0.0)) == 2


@pytest.mark.parametrize(
    ("size", "before", "late", "reason"),
    [
        (2, [], hello(job="day"), "this is the coordinator of job 'night', not of 'day'"),
        (2, [hello(0)], hello(0), "rank 0 is taken"),
        (2, [], hello(2), "there is no rank 2 among 2 workers"),
        (2, [], hello(size=3), "you expect 3 workers, the others 2"),
        (None, [hello(size=3)], hello(size=2), "you expect 2 workers, the others 3"),
        (None, [], hello(), "nobody said how many workers there will be"),
        (2, [hello(), hello()], hello(), "the group is complete"),
    ],
)
def test_who_does_not_fit_is_refused_with_the_reason(size, before, late, reason):
    membership = Membership(size, JOB, KEY)
    for connection, message in enumerate(before):
        membership.hear(connection, message, now=0.0)

    decisions = membership.hear(9, late, now=0.0)

    assert reason in refusal(decisions, 9)


def test_a_refused_worker_does_not_count():
    membership = Membership(2, JOB, KEY)
    membership.hear(0, hello(0), now=0.0)
    membership.hear(1, hello(0), now=0.0)
    membership.hang_up(1)

    decisions = membership.hear(2, hello(), now=0.0)

    assert {decision.connection for decision in decisions} == {0, 2}


def test_who_hangs_up_while_joining_makes_room():
    membership = Membership(2, JOB, KEY)
    membership.hear(0, hello(0), now=0.0)

    assert membership.hang_up(0) == []

    membership.hear(1, hello(0), now=0.0)
    assert len(membership.hear(2, hello(1), now=0.0)) == 2


@pytest.mark.parametrize("message", [Leave(), waiting(), Wonder(), Failed(Cause.LOST, 0, "gone"), LinkHello(1, 0, KEY)])
def test_who_does_not_say_hello_first_is_refused(message):
    assert refusal(formed().hear(99, message, now=0.0), 99) == "say hello first"


def test_nobody_joins_after_the_epoch_was_revoked():
    membership = formed(2)
    membership.hang_up(10)
    membership.hang_up(11)

    assert "the group is complete" in refusal(membership.hear(5, hello(), now=0.0), 5)


# Leaving and being lost


def test_everybody_who_is_left_is_told_of_a_loss_once():
    membership = formed(3)

    first = membership.hang_up(11)
    second = membership.hang_up(12)

    assert set(to_ranks(first)) == {0, 2}
    assert (verdict(first).cause, verdict(first).rank, verdict(first).epoch) == (Cause.LOST, 1, 1)
    assert "rank 1 went away" in verdict(first).words
    assert second == []


def test_who_leaves_is_no_loss():
    membership = formed(3)

    told = membership.hear(11, Leave(), now=0.0)

    assert to_ranks(told) == {0: Left(rank=1), 2: Left(rank=1)}
    assert membership.hang_up(11) == []


def test_who_needs_a_rank_that_left_is_told_so_at_once():
    membership = formed(3)
    membership.hear(11, Leave(), now=0.0)
    membership.hang_up(11)

    decisions = membership.hear(10, Failed(Cause.LOST, 1, "rank 1 closed its connection"), now=0.0)

    assert set(to_ranks(decisions)) == {0, 2}
    assert (verdict(decisions).cause, verdict(decisions).rank) == (Cause.LEFT, 1)
    assert "rank 1 left the group, and rank 0 needed it" in verdict(decisions).words


# Accusations


@pytest.mark.parametrize("cause", [Cause.DISAGREED, Cause.RAISED])
def test_what_a_rank_knows_for_certain_revokes_at_once(cause):
    decisions = formed(3).hear(10, Failed(cause, 2, "both sides' words"), now=0.0)

    assert set(to_ranks(decisions)) == {0, 1, 2}
    assert verdict(decisions) == Revoked(epoch=1, cause=cause, rank=2, words="both sides' words")


def test_an_accusation_of_loss_waits_for_better_evidence():
    membership = formed(3)

    membership.hear(10, Failed(Cause.LOST, 1, "its link broke"), now=100.0)
    early = membership.tick(100.0 + 0.9 * GRACE_S)
    evidence = membership.hang_up(12)

    assert early == []
    assert verdict(evidence).rank == 2
    assert membership.tick(200.0) == []


def test_an_accusation_of_loss_without_better_evidence_is_believed():
    membership = formed(3)
    membership.hear(10, Failed(Cause.LOST, 1, "its link broke"), now=100.0)

    decisions = membership.tick(membership.next_tick)

    assert membership.next_tick is None
    assert (verdict(decisions).cause, verdict(decisions).rank) == (Cause.LOST, 1)
    assert verdict(decisions).words == "rank 0: its link broke"


def test_time_matters_only_while_somebody_is_accused():
    membership = formed(3)
    before = membership.next_tick

    membership.hear(10, Failed(Cause.LOST, 1, "its link broke"), now=100.0)

    assert before is None
    assert membership.next_tick == 100.0 + GRACE_S


def test_a_stall_is_asked_about_and_the_silent_rank_is_blamed_through_a_chain():
    membership = formed(4)

    asked = membership.hear(10, Failed(Cause.STALLED, 1, "no answer from rank 1"), now=0.0)
    membership.hear(11, waiting(2), now=0.1)
    membership.hear(12, waiting(3), now=0.1)
    decisions = membership.tick(GRACE_S)

    assert to_ranks(asked) == {0: Ask(), 1: Ask(), 2: Ask(), 3: Ask()}
    assert (verdict(decisions).cause, verdict(decisions).rank) == (Cause.STALLED, 3)
    assert verdict(decisions).words == "no answer from rank 1; rank 3 holds everybody up: it answers nobody"


def test_a_rank_that_answers_but_waits_for_nobody_is_blamed_for_being_elsewhere():
    membership = formed(3)

    membership.hear(10, Failed(Cause.STALLED, 1, "late"), now=0.0)
    membership.hear(11, waiting(2), now=0.1)
    membership.hear(12, waiting(), now=0.1)
    decisions = membership.tick(GRACE_S)

    assert verdict(decisions).rank == 2
    assert verdict(decisions).words.endswith("it is not in that call")


def test_a_second_accusation_does_not_put_off_the_verdict():
    membership = formed(3)
    membership.hear(10, Failed(Cause.STALLED, 1, "late"), now=0.0)

    later = membership.hear(11, Failed(Cause.STALLED, 2, "late"), now=0.1)

    assert later == []
    assert verdict(membership.tick(GRACE_S)).rank == 1


def test_who_wonders_hears_nothing_more_if_everybody_is_in_the_same_call():
    membership = formed(3)

    asked = membership.hear(10, Wonder(), now=0.0)
    for connection in (10, 11, 12):
        membership.hear(connection, waiting(0), now=0.1)

    assert to_ranks(asked) == {0: Ask(), 1: Ask(), 2: Ask()}
    assert membership.tick(GRACE_S) == []
    assert membership.next_tick is None


def test_who_wonders_is_told_when_ranks_are_in_different_calls():
    membership = formed(3)
    membership.hear(10, Wonder(), now=0.0)
    for connection, words in ((10, "barrier"), (11, "broadcast"), (12, "barrier")):
        membership.hear(connection, waiting(words=words), now=0.1)

    decisions = membership.tick(GRACE_S)

    assert set(to_ranks(decisions)) == {0, 1, 2}
    assert verdict(decisions).cause is Cause.DISAGREED
    assert "rank 1 is in broadcast, but rank 0 is in barrier" in verdict(decisions).words


def test_ranks_that_are_in_calls_of_different_numbers_do_not_disagree():
    membership = formed(3)
    membership.hear(10, Wonder(), now=0.0)
    membership.hear(10, waiting(words="barrier", sequence=7), now=0.1)
    membership.hear(11, waiting(words="broadcast", sequence=8), now=0.1)

    assert membership.tick(GRACE_S) == []


def test_an_accusation_is_heard_although_somebody_wonders():
    membership = formed(3)
    membership.hear(10, Wonder(), now=0.0)

    membership.hear(11, Failed(Cause.LOST, 2, "its link broke"), now=0.1)

    assert verdict(membership.tick(0.1 + GRACE_S)).rank == 2


def test_an_answer_that_nobody_asked_for_changes_nothing():
    membership = formed(3)

    assert membership.hear(10, waiting(1), now=0.0) == []
    assert membership.next_tick is None


def test_an_accusation_after_the_verdict_changes_nothing():
    membership = formed(3)
    membership.hang_up(11)

    assert membership.hear(10, Failed(Cause.DISAGREED, 2, "late news"), now=0.0) == []
    assert membership.next_tick is None


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


@settings(deadline=None)
@given(
    st.dictionaries(st.integers(0, 5), st.lists(st.integers(0, 5), max_size=3)), st.integers(0, 5), st.integers(0, 5)
)
def test_blame_always_comes_to_an_end(waits, accuser, accused):
    assert 0 <= blame(accuser, accused, waits) <= 5


# Any order of events

ranks = st.integers(0, 3)
events = st.one_of(
    st.builds(hello, st.none() | ranks, st.none() | st.integers(1, 3), st.sampled_from([JOB, "day"])),
    st.builds(Failed, st.sampled_from(Cause), ranks, st.just("words")),
    st.builds(
        Waiting, st.lists(ranks, max_size=3).map(tuple), st.just("world"), st.integers(1, 2), st.text("ab", max_size=1)
    ),
    st.sampled_from([Leave(), Wonder(), Ask(), Left(1), LinkHello(1, 0, KEY), "hang up", "tick"]),
)


def play(membership, script, connections):
    """Every decision that follows from a script of (place, event, seconds later), as a server would carry it out.

    ``connections`` has the number of the connection at each place; one that closed is followed by a new number.
    """
    now = 0.0
    numbers = itertools.count(100)
    for place, event, later in script:
        now += later
        connection = connections[place]
        if event == "tick":
            decisions = membership.tick(now)
        elif event == "hang up":
            connections[place] = next(numbers)
            decisions = membership.hang_up(connection)
        else:
            decisions = membership.hear(connection, event, now)
        for decision in decisions:
            assert decision.connection in connections, "nobody is behind that connection any more"
            yield decision
            if isinstance(decision, Drop):
                connections[connections.index(decision.connection)] = next(numbers)
                yield from membership.hang_up(decision.connection)


scripts = st.lists(st.tuples(st.integers(0, 3), events, st.sampled_from([0.0, 0.1, 1.0])), max_size=20)
joined = [(place, hello(), 0.0) for place in range(3)]


@settings(deadline=None, max_examples=100)
@given(st.sampled_from([None, 1, 3]), st.booleans(), scripts)
def test_no_order_of_events_raises_or_tells_anybody_twice(size, is_formed, script):
    membership = Membership(3 if is_formed else size, JOB, KEY)

    decisions = list(play(membership, [*joined, *script] if is_formed else script, [0, 1, 2, 3]))

    said = [decision for decision in decisions if isinstance(decision, Say)]
    for kind in (Welcome, Revoked):
        told = [each.connection for each in said if isinstance(each.message, kind)]
        assert len(set(told)) == len(told)
    assert len({each.message for each in said if isinstance(each.message, Revoked)}) <= 1


@settings(deadline=None, max_examples=100)
@given(scripts)
def test_no_question_stays_open_beyond_the_time_of_grace(script):
    membership = formed(3)
    list(play(membership, script, [10, 11, 12, 13]))

    due = membership.next_tick
    decisions = [] if due is None else membership.tick(due)

    assert membership.next_tick is None
    assert all(isinstance(decision.message, Revoked) for decision in decisions)


def test_the_order_of_hellos_does_not_change_who_gets_which_rank():
    for order in itertools.permutations(range(3)):
        membership = Membership(3, JOB, KEY)

        decisions = [decision for rank in order for decision in membership.hear(rank, hello(rank), now=0.0)]

        assert {decision.connection: decision.message.rank for decision in decisions} == {0: 0, 1: 1, 2: 2}

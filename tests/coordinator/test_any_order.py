"""The coordinator, in any order of events."""

import itertools

import msgspec
from coordinator_play import Chronicled, Play, plain_group, plain_hello, run_hello
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.coordinator.blame import GRACE_S
from phalanx.coordinator.decision import Drop, Record, Say
from phalanx.coordinator.events import (
    EpochBegan,
    Event,
    Recovered,
    WorkerCame,
    WorkerEvicted,
    WorkerLeft,
    WorkerLost,
)
from phalanx.coordinator.record import Committed, Ended
from phalanx.wire import (
    Ask,
    AskStacks,
    Cause,
    Commit,
    Describe,
    Done,
    Failed,
    Halt,
    Holds,
    Leave,
    Left,
    LinkHello,
    Look,
    PostNote,
    Reason,
    Revoked,
    Stacks,
    Waiting,
    Welcome,
)

KEY = bytes(16)
ranks = st.integers(0, 3)
words = st.sampled_from(["words", "x" * 4096])
names = st.sampled_from(["", "w0", "w1", "w2", "w3"])
digests = st.sampled_from([b"same", b"same", b"same", b"other"])
hellos = st.one_of(
    st.builds(plain_hello, st.none() | ranks, st.none() | st.integers(1, 3), st.sampled_from(["", "day"])),
    st.builds(run_hello, names, step=st.integers(0, 2), pending=st.none() | digests, can_keep=st.booleans()),
)
messages = st.one_of(
    hellos,
    st.builds(Failed, st.integers(0, 3), st.sampled_from(Cause), ranks, words),
    st.builds(
        Waiting,
        st.integers(0, 3),
        st.lists(ranks, max_size=3).map(tuple),
        st.lists(st.sampled_from([0.0, 1.0, 40.0]), max_size=3).map(tuple),
        st.just("world"),
        st.integers(1, 2),
        st.just("") | words,
        st.floats(0.0, 100.0),
    ),
    st.builds(Halt, st.integers(0, 2), st.sampled_from(Reason), st.none() | ranks, words),
    st.builds(Holds, st.integers(1, 3)),
    st.sampled_from(
        [
            Leave(),
            Look(),
            Ask(),
            Left(1),
            LinkHello(1, 0, KEY),
            Describe(),
            Describe(b"facts"),
            PostNote(b"note"),
            AskStacks(1),
            Stacks(1, "x"),
        ]
    ),
)
places = st.integers(0, 4)
events = st.one_of(
    st.tuples(places, messages),
    st.tuples(places, st.sampled_from(["hang up", "wait", "wait long"])),
    st.tuples(places, st.builds(lambda digest, late: ("done", digest, late), digests, st.integers(0, 1))),
)


def perform(play, script):
    """Every decision that follows from a script of (place, event); a connection that closed gets a new number."""
    connections = list(range(5))
    numbers = itertools.count(100)
    for place, event in script:
        connection = connections[place]
        match event:
            case "wait" | "wait long":
                decisions = play.wait(1.0 if event == "wait" else 70.0)
            case "hang up":
                connections[place] = next(numbers)
                decisions = play.hang_up(connection)
            case ("done", digest, late):
                done = Done(play.membership.epoch, max(0, play.membership.step - late), 0.1, digest)
                decisions = play.say(connection, done)
            case _:
                decisions = play.say(connection, event)
        for decision in decisions:
            yield decision
            if isinstance(decision, Drop) and decision.connection in connections:
                connections[connections.index(decision.connection)] = next(numbers)


scripts = st.lists(events, max_size=30)
starts = st.sampled_from(
    [
        [],
        [(place, plain_hello()) for place in range(3)],
        [(place, run_hello(f"w{place}")) for place in range(3)],
    ]
)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from([(None, None), (1, 1), (2, 3), (3, 3)]), starts, scripts)
def test_no_order_of_events_raises_or_commits_a_step_twice(sizes, start, script):
    play = Play(*sizes)

    decisions = list(perform(play, [*start, *script]))

    lines = [decision.line for decision in decisions if isinstance(decision, Record)]
    steps = [line.step for line in lines if isinstance(line, Committed)]
    assert steps == sorted(set(steps)), "no step is committed twice, or before another"
    assert sum(isinstance(line, Ended) for line in lines) <= 1
    epochs = [(each.epoch, each.rank) for each in said(decisions, Welcome)]
    assert len(set(epochs)) == len(epochs), "no rank of an epoch is given out twice"
    revoked = [each.epoch for each in said(decisions, Revoked)]
    assert len(set(revoked)) == len(revoked), "no epoch ends twice"


@settings(deadline=None, max_examples=200)
@given(starts, scripts)
def test_whoever_is_told_that_a_step_counts_is_told_so_once_and_after_it_was_written_down(start, script):
    play = Play(2, 3)
    known = set()
    told_of = set()

    for decision in perform(play, [*start, *script]):
        match decision:
            case Record(line=Committed(step=step, digest=digest)):
                known.add(Commit(step, digest))
            case Say(message=Commit() as commit, to=to):
                assert commit in known
                assert told_of.isdisjoint((each, commit.step) for each in to)
                told_of |= {(each, commit.step) for each in to}


@settings(deadline=None, max_examples=200)
@given(st.sampled_from([(None, None), (1, 1), (2, 3), (3, 3)]), starts, scripts)
def test_events_can_be_read_back_and_nobody_goes_who_did_not_come(sizes, start, script):
    play = Chronicled(*sizes)

    list(perform(play, [*start, *script]))

    noted = play.events + (play.end() if play.membership.ended else [])
    assert [msgspec.json.decode(msgspec.json.encode(each), type=Event) for each in noted] == noted
    present = 0
    for each in noted:
        present += isinstance(each, WorkerCame)
        present -= isinstance(each, WorkerLost | WorkerEvicted | WorkerLeft)
        assert present >= (len(each.members) if isinstance(each, EpochBegan) else 0)
    epochs = [each.epoch for each in noted if isinstance(each, EpochBegan)]
    assert epochs == sorted(set(epochs))
    assert all(each.epoch_s <= each.commit_s and each.epoch in epochs for each in noted if isinstance(each, Recovered))


@settings(deadline=None, max_examples=100)
@given(scripts)
def test_no_question_stays_open_beyond_the_time_of_grace(script):
    play = plain_group(3)
    list(perform(play, [(place, event) for place, event in script if event != "wait long"]))

    play.wait(GRACE_S)

    assert play.membership._inquiry is None
    assert play.membership._left_due is None


def said(decisions, kind):
    """The messages of a kind, once each time one is said."""
    return [each.message for each in decisions if isinstance(each, Say) and isinstance(each.message, kind)]

"""Headers and messages for hypothesis to draw."""

from typing import get_args

from hypothesis import strategies as st

from phalanx.buffers import DType, ReduceOp
from phalanx.wire import (
    NO_ROOT,
    Address,
    Ask,
    AskStacks,
    AskTime,
    Cause,
    Collective,
    Commit,
    Describe,
    Described,
    Done,
    Evict,
    Failed,
    Halt,
    Header,
    Heard,
    Hello,
    Holds,
    Kind,
    Leave,
    Left,
    LinkHello,
    Look,
    Member,
    Message,
    PostedNote,
    PostNote,
    Reason,
    Records,
    Refused,
    Revoked,
    Signature,
    Stacks,
    Standing,
    Status,
    Tag,
    TellTime,
    Waiting,
    Welcome,
)

MESSAGE_TYPES = get_args(Message)


def up_to(greatest):
    return st.integers(0, greatest)


ranks = up_to(NO_ROOT - 1)
epochs = up_to(2**32 - 1)
numbers = up_to(2**64 - 1)
texts = st.text(max_size=20)
keys = st.binary(min_size=16, max_size=16)

tags = st.builds(Tag, epoch=epochs, sequence=numbers, round=up_to(2**16 - 1))
signatures = st.builds(
    Signature,
    st.sampled_from(Collective),
    st.sampled_from(DType),
    numbers,
    st.none() | st.sampled_from(ReduceOp),
    st.none() | ranks,
    up_to(2**16 - 1),
)


def headers(lengths=numbers):
    data = st.builds(Header, st.just(Kind.DATA), tags, signatures, lengths)
    control = st.builds(Header, st.just(Kind.CONTROL), tags, st.none(), lengths)
    return data | control


@st.composite
def frames(draw, size_bytes=100):
    payload = draw(st.binary(max_size=size_bytes))
    return draw(headers(st.just(len(payload)))), payload


addresses = st.lists(st.builds(Address, texts, up_to(65535)), max_size=3).map(tuple)
lanes = st.tuples(numbers, numbers)
digests = st.binary(max_size=20)
seconds = st.floats(0, 1e9)
members = st.builds(Member, ranks, texts, addresses, numbers, lanes, numbers)
standings = st.builds(
    Standing,
    st.none() | ranks,
    texts,
    texts,
    numbers,
    texts,
    numbers,
    st.none() | lanes,
    seconds,
    st.booleans(),
    st.lists(ranks, max_size=3).map(tuple),
    texts,
)

MESSAGES = {
    Hello: st.builds(
        Hello,
        texts,
        addresses,
        numbers,
        st.none() | ranks,
        st.none() | st.integers(1, NO_ROOT),
        texts,
        texts,
        texts,
        numbers,
        st.none() | st.integers(1, NO_ROOT),
        up_to(2**53 - 1),
        st.none() | digests,
        st.none() | st.floats(0.1, 3600),
        st.none() | st.floats(0.1, 1e6),
    ),
    Heard: st.builds(Heard, st.floats(0.1, 3600), st.floats(0.1, 1e6)),
    Welcome: st.builds(Welcome, epochs, ranks, keys, st.lists(members, max_size=3).map(tuple), numbers),
    Holds: st.builds(Holds, epochs),
    Done: st.builds(Done, epochs, numbers, st.floats(allow_nan=False), digests),
    Commit: st.builds(Commit, numbers, digests),
    Halt: st.builds(Halt, numbers, st.sampled_from(Reason), st.none() | ranks, texts),
    Evict: st.builds(Evict, texts),
    Look: st.builds(Look),
    Describe: st.builds(Describe, st.none() | st.binary(max_size=64)),
    Described: st.builds(Described, st.none() | st.binary(max_size=64)),
    PostNote: st.builds(PostNote, st.binary(max_size=64)),
    PostedNote: st.builds(PostedNote, numbers, st.none() | st.binary(max_size=64), st.floats(0, 1e12)),
    Status: st.builds(Status, epochs, numbers, texts, st.lists(standings, max_size=2).map(tuple)),
    Refused: st.builds(Refused, texts),
    Failed: st.builds(Failed, epochs, st.sampled_from(Cause), ranks, texts),
    Ask: st.builds(Ask),
    Waiting: st.builds(
        Waiting,
        epochs,
        st.lists(ranks, max_size=3).map(tuple),
        st.lists(st.floats(0, 1e6), max_size=3).map(tuple),
        texts,
        numbers,
        texts,
        st.floats(0, 1e9),
    ),
    AskTime: st.builds(AskTime, up_to(2**62 - 1)),
    TellTime: st.builds(TellTime, up_to(2**62 - 1), up_to(2**62 - 1)),
    Records: st.builds(Records, st.binary(max_size=64)),
    AskStacks: st.builds(AskStacks, ranks),
    Stacks: st.builds(Stacks, ranks, texts),
    Leave: st.builds(Leave, st.booleans()),
    Left: st.builds(Left, ranks),
    Revoked: st.builds(Revoked, epochs, st.sampled_from(Cause), ranks, texts),
    LinkHello: st.builds(LinkHello, epochs, ranks, keys),
}
messages = st.one_of(*MESSAGES.values())

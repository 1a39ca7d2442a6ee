"""The control messages: what workers and the coordinator say to each other. docs/wire-format.md specifies them."""

import re
from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta

from phalanx.errors import BadFrame
from phalanx.wire.frame import NO_ROOT, Header, Kind, Tag

Epoch = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Rank = Annotated[int, Meta(ge=0, lt=NO_ROOT)]
Size = Annotated[int, Meta(ge=1, le=NO_ROOT)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Number = Annotated[int, Meta(ge=0)]
Text = Annotated[str, Meta(max_length=4096)]
Key = Annotated[bytes, Meta(min_length=16, max_length=16)]


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Message(_Value, frozen=True, tag=True):
    pass


class Address(_Value, frozen=True):
    """Where a worker listens."""

    host: Text
    port: Port


Addresses = Annotated[tuple[Address, ...], Meta(max_length=64)]


class Member(_Value, frozen=True):
    """One rank of an epoch, and how to reach it."""

    rank: Rank
    host: Text
    addresses: Addresses
    pid: Number


class Cause(Enum):
    """Why an epoch ended."""

    LOST = "lost"
    """A connection closed without a word."""
    LEFT = "left"
    """A rank that was still needed had closed its group."""
    STALLED = "stalled"
    """A deadline passed."""
    DISAGREED = "disagreed"
    """Ranks did not make the same call."""
    RAISED = "raised"
    """A rank's own program failed."""


class Hello(_Message, frozen=True):
    """A worker wants to join; ``rank`` and ``size`` are None where the coordinator shall choose."""

    host: Text
    addresses: Addresses
    pid: Number
    rank: Rank | None
    size: Size | None
    job: Text


class Welcome(_Message, frozen=True):
    """The coordinator admits a worker; links of this epoch prove themselves with ``key``."""

    epoch: Epoch
    rank: Rank
    key: Key
    members: Annotated[tuple[Member, ...], Meta(max_length=NO_ROOT)]


class Refused(_Message, frozen=True):
    """The coordinator does not admit a worker."""

    reason: Text


class Failed(_Message, frozen=True):
    """A worker cannot go on, because of ``rank``."""

    cause: Cause
    rank: Rank
    words: Text


class Wonder(_Message, frozen=True):
    """A worker has waited for a while: is everybody in the same call?"""


class Ask(_Message, frozen=True):
    """The coordinator asks every worker whom it waits for."""


class Waiting(_Message, frozen=True):
    """The ranks that a worker waits for at this moment, and in which call; none if it is busy elsewhere."""

    ranks: Annotated[tuple[Rank, ...], Meta(max_length=NO_ROOT)]
    group: Text
    sequence: Number
    words: Text


class Leave(_Message, frozen=True):
    """This rank goes, on purpose."""


class Left(_Message, frozen=True):
    """Another rank went, on purpose."""

    rank: Rank


class Revoked(_Message, frozen=True):
    """The epoch is over because of ``rank``: nothing of it is to be waited for."""

    epoch: Epoch
    cause: Cause
    rank: Rank
    words: Text


class LinkHello(_Message, frozen=True):
    """The first message on a link between workers."""

    epoch: Epoch
    rank: Rank
    key: Key


Message = Hello | Welcome | Refused | Failed | Wonder | Ask | Waiting | Leave | Left | Revoked | LinkHello

_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The whole frame, header and payload; BadFrame for a message that its receiver would refuse."""
    payload = msgspec.msgpack.encode(message)
    decode(payload)
    return Header(Kind.CONTROL, Tag(epoch=0, sequence=0, round=0), None, len(payload)).pack() + payload


def decode(payload: bytes) -> Message:
    """The message that the payload of a control frame stands for, or BadFrame."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"this is no control message: {_without_quotes(str(error))}") from None


def _without_quotes(words: str) -> str:
    """Leave out what the peer wrote: it may be long, or made to fool a terminal."""
    return re.sub(r"(?s)(unknown field|Invalid value|Invalid enum value) .*", r"\1", words)

"""The control messages: what workers and the coordinator say to each other. docs/wire-format.md specifies them."""

from enum import Enum
from typing import Annotated

from msgspec import Meta

from phalanx.wire.codec import Codec, Tagged, Value
from phalanx.wire.frame import NO_ROOT

Epoch = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Rank = Annotated[int, Meta(ge=0, lt=NO_ROOT)]
Size = Annotated[int, Meta(ge=1, le=NO_ROOT)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Number = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Patience = Annotated[float, Meta(ge=0.1, le=3600)]
Text = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(max_length=256)]
Key = Annotated[bytes, Meta(min_length=16, max_length=16)]
Digest = Annotated[bytes, Meta(max_length=64)]


class Address(Value, frozen=True):
    """Where a worker listens."""

    host: Text
    port: Port


Addresses = Annotated[tuple[Address, ...], Meta(max_length=64)]


class Member(Value, frozen=True):
    """One rank of an epoch, and how to reach it.

    It computes the lanes from ``lanes[0]`` up to, not including, ``lanes[1]``, and ``step`` is the next step of the
    state that it holds: one that is behind the epoch's gets its state from one that is not.
    """

    rank: Rank
    host: Text
    addresses: Addresses
    pid: Number
    lanes: tuple[Number, Number] = (0, 0)
    step: Number = 0


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


class Reason(Enum):
    """Why everybody halted."""

    NON_FINITE = "non-finite"
    """A gradient is not finite."""
    DIVERGED = "diverged"
    """Ranks that must hold the same do not."""
    RAISED = "raised"
    """A rank's own program failed."""
    STUCK = "stuck"
    """Too few workers, or nobody who holds the state, or no step that succeeds."""
    UNRECORDED = "unrecorded"
    """The coordinator cannot write its journal."""


class Hello(Tagged, frozen=True):
    """A worker wants to join; ``rank`` and ``size`` are None where the coordinator shall choose.

    ``lanes`` is None for a group that takes no steps. ``step`` is the next step of the state that the worker holds;
    ``pending`` is the digest of that step, if the worker is done with it and has not heard whether it counts.
    """

    host: Text
    addresses: Addresses
    pid: Number
    rank: Rank | None
    size: Size | None
    job: Text
    name: Name = ""
    device: Name = ""
    threads: Number = 0
    lanes: Size | None = None
    step: Number = 0
    pending: Digest | None = None


class Heard(Tagged, frozen=True):
    """The coordinator has heard a hello: from now on both sides say something at least every ``patience_s`` / 5."""

    patience_s: Patience


class Beat(Tagged, frozen=True):
    """Somebody is alive and has nothing else to say."""


class Welcome(Tagged, frozen=True):
    """An epoch begins, with ``step``; its links prove themselves with ``key``. What was before it is void."""

    epoch: Epoch
    rank: Rank
    key: Key
    members: Annotated[tuple[Member, ...], Meta(max_length=NO_ROOT)]
    step: Number = 0


class Holds(Tagged, frozen=True):
    """A worker that was behind has got the state of the epoch's step."""

    epoch: Epoch


class Done(Tagged, frozen=True):
    """A worker has computed and exchanged a step; ``digest`` must be the same on all ranks."""

    epoch: Epoch
    step: Number
    loss: float
    digest: Digest


class Commit(Tagged, frozen=True):
    """A step counts: every rank was done with it, and it is recorded."""

    step: Number
    digest: Digest


class Halt(Tagged, frozen=True):
    """Everybody stops at ``step``; ``rank`` caused it, if one did. Said by who found out, then to all."""

    step: Number
    reason: Reason
    rank: Rank | None
    words: Text


class Evict(Tagged, frozen=True):
    """The coordinator gives a worker up: it may come again."""

    words: Text


class Refused(Tagged, frozen=True):
    """The coordinator does not admit a worker."""

    reason: Text


class Failed(Tagged, frozen=True):
    """A worker cannot go on in an epoch, because of ``rank``."""

    epoch: Epoch
    cause: Cause
    rank: Rank
    words: Text


class Wonder(Tagged, frozen=True):
    """A worker has waited for a while: is everybody in the same call?"""


class Ask(Tagged, frozen=True):
    """The coordinator asks every worker whom it waits for."""


class Waiting(Tagged, frozen=True):
    """The ranks that a worker waits for at this moment, and in which call; none if it is busy elsewhere."""

    epoch: Epoch
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=NO_ROOT)]
    group: Text
    sequence: Number
    words: Text


class Leave(Tagged, frozen=True):
    """This rank goes, on purpose."""


class Left(Tagged, frozen=True):
    """Another rank went, on purpose."""

    rank: Rank


class Revoked(Tagged, frozen=True):
    """The epoch is over because of ``rank``: nothing of it is to be waited for."""

    epoch: Epoch
    cause: Cause
    rank: Rank
    words: Text


class LinkHello(Tagged, frozen=True):
    """The first message on a link between workers."""

    epoch: Epoch
    rank: Rank
    key: Key


class Look(Tagged, frozen=True):
    """Somebody who is no worker asks how things stand."""


class Standing(Value, frozen=True):
    """How one worker stands; ``rank`` is None while it waits to be admitted."""

    rank: Rank | None
    name: Name
    host: Text
    pid: Number
    device: Name
    threads: Number
    lanes: tuple[Number, Number] | None
    beat_age_s: Seconds
    is_done: bool
    waits_for: tuple[Rank, ...]
    doing: Text


class Status(Tagged, frozen=True):
    """How things stand; ``words`` says in which state the run is."""

    epoch: Epoch
    step: Number
    words: Text
    workers: tuple[Standing, ...]


Message = (
    Hello
    | Heard
    | Beat
    | Welcome
    | Holds
    | Done
    | Commit
    | Halt
    | Evict
    | Refused
    | Failed
    | Wonder
    | Ask
    | Waiting
    | Leave
    | Left
    | Revoked
    | LinkHello
    | Look
    | Status
)

_codec: Codec[Message] = Codec(Message)
encode, decode = _codec.encode, _codec.decode

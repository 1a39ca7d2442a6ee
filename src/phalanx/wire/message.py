"""The control messages between workers and the coordinator. docs/wire-format.md specifies them."""

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
Step = Annotated[int, Meta(ge=0, lt=2**53)]  # the coordinator counts on from the step that a worker holds
Seconds = Annotated[float, Meta(ge=0)]
Patience = Annotated[float, Meta(ge=0.1, le=3600)]
Stall = Annotated[float, Meta(ge=0.1, le=1_000_000)]
Text = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(max_length=256)]
Key = Annotated[bytes, Meta(min_length=16, max_length=16)]
Digest = Annotated[bytes, Meta(max_length=64)]
Facts = Annotated[bytes, Meta(max_length=2**19)]
Note = Annotated[bytes, Meta(max_length=2**14)]
LongText = Annotated[str, Meta(max_length=2**16)]
Batch = Annotated[bytes, Meta(max_length=10**6)]
Nanoseconds = Annotated[int, Meta(ge=0, lt=2**62)]


class Address(Value, frozen=True):
    """Where a worker listens."""

    host: Text
    port: Port


Addresses = Annotated[tuple[Address, ...], Meta(max_length=64)]


class Member(Value, frozen=True):
    """One rank of an epoch, and how to reach it.

    It computes the lanes from ``lanes[0]`` up to, but not including, ``lanes[1]``. ``step`` is the next step of the
    state that it holds; a member that is behind the epoch's step gets its state from one that is not. ``can_keep`` is
    as in Hello.
    """

    rank: Rank
    host: Text
    addresses: Addresses
    pid: Number
    lanes: tuple[Number, Number] = (0, 0)
    step: Number = 0
    can_keep: bool = False


class Cause(Enum):
    """Why an epoch ended."""

    LOST = "lost"
    """A rank's connection closed without a Leave."""
    DIED = "died"
    """A rank saw the process of another rank of its host die. Only ranks say this: for the coordinator, it is lost."""
    LEFT = "left"
    """A rank closed its group while another rank still needed it."""
    STALLED = "stalled"
    """A rank did not do its part before a deadline, or did nothing for the stall time."""
    DISAGREED = "disagreed"
    """Ranks did not make the same call."""
    GARBLED = "garbled"
    """A rank sent bytes that are no frame."""
    RAISED = "raised"
    """A rank's own program failed."""


class Reason(Enum):
    """Why everybody halted."""

    NON_FINITE = "non-finite"
    """A gradient is not finite."""
    DIVERGED = "diverged"
    """Ranks that must hold the same weights do not."""
    CORRUPTED = "corrupted"
    """A gradient changed in memory, or was added up wrongly."""
    STATE_LOST = "state-lost"
    """All ranks that held a part of the optimizer state are gone."""
    RAISED = "raised"
    """A rank's own program failed."""
    STUCK = "stuck"
    """There are too few workers, nobody holds the state, or no step succeeds."""
    UNRECORDED = "unrecorded"
    """The coordinator cannot write its journal."""


class Hello(Tagged, frozen=True):
    """A worker wants to join; the coordinator chooses ``rank``, ``size``, ``patience_s`` and ``stall_s`` if None.

    ``lanes`` is None for a group that takes no steps. ``step`` is the next step of the state that the worker holds;
    ``pending`` is the digest of that step if the worker is done with it and does not know yet whether it counts. A
    worker that ``can_keep`` can write what the run leaves behind: such workers get the first ranks.
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
    step: Step = 0
    pending: Digest | None = None
    patience_s: Patience | None = None
    stall_s: Stall | None = None
    can_keep: bool = False


class Heard(Tagged, frozen=True):
    """The coordinator has accepted a Hello, and says which patience and which stall time apply to this worker."""

    patience_s: Patience
    stall_s: Stall


class Welcome(Tagged, frozen=True):
    """An epoch begins at ``step``; its links authenticate with ``key``. Everything of earlier epochs is void."""

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
    """All workers stop at ``step``, because of ``rank`` if one is to blame. Sent by whoever found out, then to all.

    ``epoch`` is the one in which a worker found out; the coordinator's own halts have 0.
    """

    step: Number
    reason: Reason
    rank: Rank | None
    words: Text
    epoch: Epoch = 0


class Evict(Tagged, frozen=True):
    """The coordinator removes a worker from its group; the worker may join again."""

    words: Text


class Refused(Tagged, frozen=True):
    """The coordinator does not admit a worker."""

    reason: Text


class Failed(Tagged, frozen=True):
    """A worker cannot continue in an epoch because of ``rank``."""

    epoch: Epoch
    cause: Cause
    rank: Rank
    words: Text


class Ask(Tagged, frozen=True):
    """The coordinator asks every worker whom it waits for."""


class Waiting(Tagged, frozen=True):
    """What a worker waits for: the answer to Ask, and also sent unasked by a worker that has waited for a second.

    ``ranks`` are the ranks it waits for, ``waited_s`` for how long it has waited for each of them. ``words`` say what
    the worker is waiting in, and are empty if it does not wait. ``cpu_s`` is the processor time its process has used.
    """

    epoch: Epoch
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=NO_ROOT)]
    waited_s: Annotated[tuple[Seconds, ...], Meta(max_length=NO_ROOT)]
    group: Text
    sequence: Number
    words: Text
    cpu_s: Seconds


class AskTime(Tagged, frozen=True):
    """A worker asks for the time of the coordinator's monotonic clock. ``asked_ns`` is the time of its own."""

    asked_ns: Nanoseconds


class TellTime(Tagged, frozen=True):
    """The coordinator tells the time of its monotonic clock, and repeats what the question said."""

    asked_ns: Nanoseconds
    now_ns: Nanoseconds


class Records(Tagged, frozen=True):
    """A worker that cannot write what the run leaves behind sends a batch of its telemetry."""

    batch: Batch


class AskStacks(Tagged, frozen=True):
    """What does the Python code of ``rank`` do? From a client that is not a worker, then from the coordinator to it."""

    rank: Rank


class Stacks(Tagged, frozen=True):
    """The Python stacks of all threads of a rank, or why there are none: from the worker, then to who has asked."""

    rank: Rank
    words: LongText


class Leave(Tagged, frozen=True):
    """The sender leaves on purpose; ``is_over`` says that the run has come to its end for everybody."""

    is_over: bool = False


class Left(Tagged, frozen=True):
    """Another rank left on purpose."""

    rank: Rank


class Revoked(Tagged, frozen=True):
    """The epoch is over because of ``rank``: stop waiting for anything in it."""

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
    """A client that is not a worker asks for the state of the run."""


class Standing(Value, frozen=True):
    """The state of one worker; ``rank`` is None while it waits to be admitted.

    ``silent_s`` is how long ago its last message came; a worker that is able to answers every Look.
    """

    rank: Rank | None
    name: Name
    host: Text
    pid: Number
    device: Name
    threads: Number
    lanes: tuple[Number, Number] | None
    silent_s: Seconds
    is_done: bool
    waits_for: tuple[Rank, ...]
    doing: Text


class Status(Tagged, frozen=True):
    """The state of the run in ``words``, and of every worker."""

    epoch: Epoch
    step: Number
    words: Text
    workers: tuple[Standing, ...]


class Describe(Tagged, frozen=True):
    """A client that is not a worker yet asks what the run is, and ``offers`` its own facts in case nobody has."""

    offers: Facts | None = None


class Described(Tagged, frozen=True):
    """What the run is, for those who train in it: the first facts that anybody offered; None if nobody has."""

    facts: Facts | None


class PostNote(Tagged, frozen=True):
    """A client that is not a worker posts a note for all clients that post notes. The coordinator does not read it."""

    note: Note


class PostedNote(Tagged, frozen=True):
    """A note of ``author``, a number that stands for one connection; None if that connection has closed.

    Each client gets its own notes, too. ``time_s`` is the coordinator's clock as it sends this, in seconds since 1970.
    """

    author: Number
    note: Note | None
    time_s: float = 0.0


Message = (
    Hello
    | Heard
    | Welcome
    | Holds
    | Done
    | Commit
    | Halt
    | Evict
    | Refused
    | Failed
    | Ask
    | Waiting
    | AskTime
    | TellTime
    | Records
    | AskStacks
    | Stacks
    | Leave
    | Left
    | Revoked
    | LinkHello
    | Look
    | Status
    | Describe
    | Described
    | PostNote
    | PostedNote
)

_codec: Codec[Message] = Codec(Message)
encode, decode = _codec.encode, _codec.decode

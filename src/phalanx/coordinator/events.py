"""The events of a run: what happened to its workers, its epochs and its coordinator, one JSON object each."""

from typing import Annotated

import msgspec
from msgspec import Meta

_Count = Annotated[int, Meta(ge=0, lt=2**62)]
_Seconds = Annotated[float, Meta(ge=0)]


class _Event(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """``time`` is when the event was written down, in seconds since 1970; 0 before that."""

    time: Annotated[float, Meta(ge=0, lt=2**33)] = 0.0


class CoordinatorStarted(_Event, frozen=True, kw_only=True):
    """A coordinator started. It continues a run at ``step`` if it ``is_restart``; otherwise its run is new."""

    is_restart: bool
    step: _Count


class _OfWorker(_Event, frozen=True, kw_only=True):
    """``host`` is empty if the worker did not tell its name; ``rank`` is None if it was in no epoch."""

    rank: _Count | None
    pid: _Count
    host: str


class WorkerCame(_OfWorker, frozen=True, kw_only=True):
    """The coordinator accepted a worker, which now waits to be admitted."""


class WorkerLost(_OfWorker, frozen=True, kw_only=True):
    """The connection of a worker closed without a word; ``words`` say how."""

    words: str


class WorkerEvicted(_OfWorker, frozen=True, kw_only=True):
    """The coordinator sent a worker away; ``words`` say why."""

    words: str


class WorkerLeft(_OfWorker, frozen=True, kw_only=True):
    """A worker left on purpose."""


class Seat(msgspec.Struct, frozen=True):
    """One rank of an epoch: its process, how many lanes it computes, and whether the epoch before was without it."""

    rank: _Count
    pid: _Count
    host: str
    lanes: _Count
    is_new: bool


class EpochBegan(_Event, frozen=True, kw_only=True):
    """An epoch began at ``step``. In the first epoch of a run nobody is new."""

    epoch: _Count
    step: _Count
    members: tuple[Seat, ...]


class EpochEnded(_Event, frozen=True, kw_only=True):
    """The coordinator revoked an epoch because of ``rank``; ``cause`` is one of ``phalanx.wire.Cause``."""

    epoch: _Count
    cause: str
    rank: _Count
    words: str


class Recovered(_Event, frozen=True, kw_only=True):
    """A step was committed, the first one after an epoch was revoked or the coordinator was restarted.

    ``epoch_s`` and ``commit_s`` are the times from then to the beginning of ``epoch`` and to the commit of ``step``. If
    further members were lost before the commit, they count from the first loss on. ``lost`` is how many members were
    lost, evicted or left, ``members`` how many there are now.
    """

    epoch: _Count
    step: _Count
    lost: _Count
    members: _Count
    epoch_s: _Seconds
    commit_s: _Seconds


class Admitted(_Event, frozen=True, kw_only=True):
    """The first step with newcomers was committed, ``stood_still_s`` after their epoch began.

    That is how long the others did without a commit: for the transfer of the state, and for the step itself.
    """

    epoch: _Count
    step: _Count
    newcomers: tuple[Seat, ...]
    members: _Count
    stood_still_s: _Seconds


class RunEnded(_Event, frozen=True, kw_only=True):
    """The run is over: finished, or stopped before that if it ``has_halted``."""

    step: _Count
    words: str
    has_halted: bool


Event = (
    CoordinatorStarted
    | WorkerCame
    | WorkerLost
    | WorkerEvicted
    | WorkerLeft
    | EpochBegan
    | EpochEnded
    | Recovered
    | Admitted
    | RunEnded
)

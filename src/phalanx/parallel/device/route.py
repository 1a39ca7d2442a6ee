"""Where the gradients of a model on a GPU meet, and why: decided from what all ranks say, so all decide the same."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple


class Meeting(Enum):
    """Where gradients are added up."""

    DEVICE = "on the GPU"
    """Every rank reads the pieces of the others by CUDA IPC, and adds them up on a stream of its own."""
    STAGED = "on each GPU, where copies come through memory of the host"
    """Every rank copies its pieces out, copies those of the others in, and adds them up on a stream of its own."""
    HOST = "in memory of the host"
    """Pieces are copied out, added up by the CPU, and the mean is copied in."""


_MOST_STAGED = 4  # ranks: each copies the pieces of all others, and for more of them the CPU adds up with fewer bytes


class Gpu(NamedTuple):
    """What a rank says about its GPU: which one it is, whether MPS serves it, and whether it shall be left out."""

    identity: bytes
    has_mps: bool = False
    is_left_out: bool = False


class Route(NamedTuple):
    """Where gradients meet, and why there."""

    meeting: Meeting
    reason: str

    def __str__(self) -> str:
        return f"gradients meet {self.meeting.value}, because {self.reason}"


def choose_route(gpus: Sequence[Gpu], hosts: int, *, is_elastic: bool, is_checked: bool = False) -> Route:
    """Return where the gradients of these ranks meet, which are on so many ``hosts``.

    Members of an elastic run may die. Under MPS the death of a rank that computes takes the others' work along. Sums
    that are to be checked meet in memory of the host.
    """
    if len(gpus) == 1 and not is_checked:
        return Route(Meeting.DEVICE, "there is one rank")
    if is_checked:
        return Route(Meeting.HOST, "the CPU checks the sums (paranoid)")
    if hosts > 1:
        return Route(Meeting.HOST, f"the ranks share memory only within each of {hosts} hosts")
    if why_not := _why_apart(gpus, is_elastic=is_elastic):
        return without_sharing(len(gpus), why_not)
    return Route(Meeting.DEVICE, f"all {len(gpus)} ranks are on one GPU")


def without_sharing(ranks: int, why: str) -> Route:
    """Return where gradients meet if ranks of one host turn out to be unable to read each other's GPU memory."""
    return Route(Meeting.STAGED if ranks <= _MOST_STAGED else Meeting.HOST, why)


def _why_apart(gpus: Sequence[Gpu], *, is_elastic: bool) -> str | None:
    """Return why these ranks do not read each other's GPU memory, None if they do."""
    for rank, gpu in enumerate(gpus):
        if gpu.is_left_out:
            return f"rank {rank} was asked to (through_host)"
        if gpu.identity != gpus[0].identity:
            return f"rank {rank} has another GPU than rank 0"
        if gpu.has_mps and is_elastic:
            return f"MPS serves rank {rank}, where a rank that dies would take the others' work along"
    return None

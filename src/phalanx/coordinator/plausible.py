"""What a worker may say: everything else costs it its place, and nobody else anything."""

from dataclasses import dataclass

from phalanx.coordinator.worker import NO_RANK
from phalanx.wire import Cause, Done, Failed, Halt, Holds, Leave, Message, Reason, Stacks, Waiting

_REASONS_OF_COORDINATOR = (Reason.STUCK, Reason.UNRECORDED)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the coordinator knows when it hears a worker: the epoch, its size, the run's step, and the worker's rank.

    A Halt may have been sent before this epoch, or to a coordinator that has forgotten: it may speak of any of ``most``
    ranks, and of the step that the worker ``holds``. A worker without a rank may still speak as a member of the last
    epoch, which the coordinator knows only by its number if it was started again.
    """

    epoch: int
    size: int
    step: int
    most: int
    holds: int
    rank: int = NO_RANK

    def fault(self, message: Message) -> str | None:
        """Return why a message makes no sense from this worker, or None if it does."""
        is_member = self.rank != NO_RANK
        match message:
            case Done(epoch=self.epoch, step=step) if is_member and step != self.step:
                return f"it is done with step {step}, but the run is at step {self.step}"
            case Waiting(epoch=self.epoch) if is_member:
                return self._fault_of_waiting(message)
            case Failed(epoch=self.epoch) if is_member:
                return self._fault_of_accusation(message)
            case Halt():
                return self._fault_of_halt(message)
            case Done() | Waiting() | Failed() | Holds() | Leave() | Stacks():
                return None  # of another epoch, or always true
            case _:
                return f"only the coordinator or a newcomer says {type(message).__name__}"

    def _fault_of_waiting(self, waiting: Waiting) -> str | None:
        if len(waiting.ranks) != len(waiting.waited_s):
            return f"it waits for {len(waiting.ranks)} ranks, and says for {len(waiting.waited_s)} for how long"
        return next((words for rank in waiting.ranks if (words := _stranger(rank, self.size))), None)

    def _fault_of_accusation(self, said: Failed) -> str | None:
        if said.cause is Cause.RAISED and said.rank != self.rank:
            return f"it says that the program of rank {said.rank} failed, which only that rank can know"
        if said.cause in (Cause.LOST, Cause.DIED, Cause.STALLED, Cause.GARBLED) and said.rank == self.rank:
            return f"it says of itself that it is {said.cause.value}, which only another rank can find"
        return _stranger(said.rank, self.size)

    def _fault_of_halt(self, halt: Halt) -> str | None:
        if halt.step > max(self.step, self.holds):
            return f"it halts everybody at step {halt.step}, but the run is at step {self.step}"
        if halt.reason in _REASONS_OF_COORDINATOR:
            return f"it halts everybody because the run is {halt.reason.value}, which only the coordinator can know"
        return None if halt.rank is None else _stranger(halt.rank, self.most)


def _stranger(rank: int, size: int) -> str | None:
    return None if rank < size else f"it speaks of rank {rank}, but the ranks are 0 to {size - 1}"

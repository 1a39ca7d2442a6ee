"""Whether a step counts: it does when every member of the epoch is done with it and all have the same digest."""

from phalanx.coordinator.blame import Culprit
from phalanx.coordinator.worker import Worker
from phalanx.wire import Cause, Commit, Done, odd_one_out

_NEXT = "start all workers again from the last checkpoint, with a new journal"


class Steps:
    """The step that a run is at, and which ranks are done with it since when."""

    def __init__(self, step: int, last: Commit | None) -> None:
        self.step = step
        self.last = last
        self.dones: dict[int, Done] = {}  # by rank, in this epoch
        self.done_at: dict[int, float] = {}

    def begin(self, step: int) -> None:
        """Start at ``step`` in a new epoch: what was done in another epoch is void."""
        self.step = step
        self._forget()

    def hear(self, rank: int, done: Done, size: int, now: float) -> Commit | Culprit | None:
        """Return what follows when one of ``size`` ranks is done; None while others are not."""
        assert done.step == self.step, "the message was not checked"
        self.dones[rank] = done
        self.done_at[rank] = now
        if len(self.dones) < size:
            return None
        digests = {each: self.dones[each].digest for each in sorted(self.dones)}
        if odd := odd_one_out(digests):
            rank, other = odd
            mine, theirs = digests[rank].hex(), digests[other].hex()
            if mine[:16] != theirs[:16]:
                mine, theirs = mine[:16], theirs[:16]
            suspects = f"the machine of rank {rank}" if size > 2 else "both machines"
            words = f"rank {rank} has other weights than rank {other} at step {self.step} (digest {mine}, not {theirs})"
            return Culprit(Cause.DISAGREED, rank, f"{words}: {_NEXT}, and look at {suspects}")
        self.last = Commit(self.step, done.digest)
        self.step += 1
        self._forget()
        return self.last

    def latest_of(self, worker: Worker) -> int:
        """Return the latest step whose state a member may hold: the next one, if it is done with this one."""
        return worker.step + (worker.rank in self.dones)

    def take_back(self) -> None:
        """Undo the last commit, which nobody has been told about."""
        self.step -= 1
        self.last = None

    def _forget(self) -> None:
        self.dones.clear()
        self.done_at.clear()

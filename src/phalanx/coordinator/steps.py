"""Whether a step counts: it does when every member of the epoch was done with it, and all did the same."""

from phalanx.wire import Commit, Done, Halt, Reason, odd_one_out

_NEXT = "start all workers again from the last checkpoint, with a new journal"


class Steps:
    """The step that a run is at, and who is done with it."""

    def __init__(self, step: int, last: Commit | None) -> None:
        self.step = step
        self.last = last
        self.dones: dict[int, Done] = {}  # by rank, in this epoch

    def begin(self, step: int) -> None:
        """A new epoch: what was done in another is void."""
        self.step = step
        self.dones.clear()

    def hear(self, rank: int, done: Done, size: int) -> Commit | Halt | None:
        """What follows when one of ``size`` ranks is done; None while others are not."""
        if done.step != self.step:
            words = f"rank {rank} is done with step {done.step}, but the run is at step {self.step}"
            return Halt(self.step, Reason.DIVERGED, rank, f"{words}: {_NEXT}")
        self.dones[rank] = done
        if len(self.dones) < size:
            return None
        digests = {each: self.dones[each].digest for each in sorted(self.dones)}
        if odd := odd_one_out(digests):
            rank, other = odd
            mine, theirs = digests[rank].hex()[:16], digests[other].hex()[:16]
            suspects = f"the machine of rank {rank}" if size > 2 else "both machines"
            words = f"rank {rank} has other weights than rank {other} at step {self.step} (digest {mine}, not {theirs})"
            return Halt(self.step, Reason.DIVERGED, rank, f"{words}: {_NEXT}, and look at {suspects}")
        self.last = Commit(self.step, done.digest)
        self.step += 1
        self.dones.clear()
        return self.last

    def take_back(self) -> None:
        """The last step does not count after all; nobody has been told that it does."""
        self.step -= 1
        self.last = None

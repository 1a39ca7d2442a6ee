"""What must hold in every run, whatever fails: checked at each thing that a simulated cluster does."""

from collections.abc import Iterable, Mapping, Sequence

from phalanx.coordinator.record import Committed, Ended, Formed, Line
from phalanx.elastic import Holding
from phalanx.errors import JoinRefused, PhalanxError, ProtocolError, WeightsDiverged
from phalanx.testing.cluster.replica import CalmRun, SimulatedReplica, Sum, add_up
from phalanx.testing.cluster.stage import Job
from phalanx.wire import Done, Message, Revoked, Welcome


class Violation(AssertionError):  # noqa: N818 - named for what happened
    """A promise was broken: the message says which, when, and after what."""


class Laws:
    """All that is known of a run from outside: it remembers, and raises Violation when something does not fit."""

    def __init__(self, job: Job) -> None:
        self.commits: list[Committed] = []
        self.ended: str | None = None
        self.is_state_lost = False
        self._job = job
        self._calm = CalmRun(job.lanes, len(job.sizes))
        self._held_in = 0  # the latest epoch that a worker has entered
        self._holders: list[set[str]] = []  # of each block in that epoch
        self._epochs: dict[int, Formed] = {}
        self._welcomes: dict[int, Welcome] = {}
        self._revoked: set[int] = set()
        self._dones: dict[tuple[int, int], dict[str, bytes]] = {}

    # What workers have

    def check_replica(self, name: str, replica: SimulatedReplica) -> None:
        """What a worker holds is what a calm run has, bit for bit, and it got there by steps that count."""
        step = replica.step
        if step > len(self.commits):
            raise Violation(f"{name} holds step {step}, but only {len(self.commits)} steps were committed")
        weights, kept = self._calm.weights(step), self._calm.kept(step)
        for block, expected in enumerate(weights):
            is_here = block in replica.held
            if (is_here or replica.is_whole) and replica.weights[block] != expected:
                raise Violation(f"{name} has wrong weights in block {block} before step {step}")
            if is_here and replica.kept.get(block) != kept[block]:
                raise Violation(f"{name} has wrong state of block {block} before step {step}")

    def check_entered(self, name: str, welcome: Welcome, replica: SimulatedReplica, holding: Holding) -> None:
        """All members of an epoch start with the same state, and together they hold it as often as they should."""
        self.check_replica(name, replica)
        if replica.step != welcome.step or not replica.is_whole:
            raise Violation(f"{name} entered epoch {welcome.epoch} for step {welcome.step} with step {replica.step}")
        size = len(welcome.members)
        copies = min(2, size) if self._job.is_sharing else size
        for block, ranks in enumerate(holding.holders):
            if len(set(ranks)) < copies:
                raise Violation(f"only {ranks} hold block {block} in epoch {welcome.epoch} of {size} members")
            if (block in replica.held) != (welcome.rank in ranks):
                raise Violation(f"{name} holds the blocks {sorted(replica.held)}, and not those of {holding}")
        if welcome.epoch > self._held_in:
            self._held_in = welcome.epoch
            self._holders = [{welcome.members[rank].host for rank in ranks} for ranks in holding.holders]

    def check_lost(self, step: int, blocks: Sequence[int], members: Mapping[str, SimulatedReplica]) -> None:
        """No state is lost while one of the members has it, or one that had it when its last epoch began."""
        self.is_state_lost = True
        for name, replica in members.items():
            for block in blocks if replica.step == step else ():
                if block in replica.held or not self._holders or name in self._holders[block]:
                    raise Violation(f"the state of block {block} was called lost before step {step}, but {name} had it")

    def check_sums(self, name: str, step: int, told: Iterable[Iterable[Sum]]) -> bytes:
        """Return the sum over all lanes of a step: it has each of them once, and was added up in the tree's order."""
        pieces = sorted((piece for sums in told for piece in sums), key=lambda piece: piece[0].start)
        if [lane for lanes, _ in pieces for lane in lanes] != list(range(self._job.lanes)):
            raise Violation(f"{name} made step {step} of the lanes {[lanes for lanes, _ in pieces]}")
        ((_, found),) = add_up(self._job.lanes, pieces)
        if found != self._calm.mean(step):
            raise Violation(f"{name} added up something else than the lanes of step {step}")
        return found

    def check_found(self, name: str, step: int, found: bytes) -> None:
        """All members find the same, and for the state that they have."""
        if found != self._calm.evaluation(step):
            raise Violation(f"{name} found something else than others before step {step}")

    def check_told(self, name: str, last: int | None, step: int) -> None:
        """Whoever trains is told of each step once, and in order."""
        if last is not None and step <= last:
            raise Violation(f"{name} was told of step {step} after step {last}")

    def check_written(self, name: str, latest: int, epoch: int) -> None:
        """A worker that was given up writes nothing any more."""
        if latest > epoch:
            raise Violation(f"{name} of epoch {epoch} wrote after a worker of epoch {latest}")

    # What is said, and what the journal has

    def check_done(self, name: str, made_in: int, done: Done) -> None:
        """A worker says that it is done only in the epoch in which it was."""
        if done.epoch != made_in:
            raise Violation(f"{name} says {done} of what it did in epoch {made_in}")

    def note_heard(self, name: str, done: Done) -> None:
        """The coordinator knows that a worker is done."""
        self._dones.setdefault((done.epoch, done.step), {})[name] = done.digest

    def check_said(self, message: Message) -> None:
        """An epoch is described to all in the same way, is complete, and has somebody who holds the state."""
        if isinstance(message, Revoked):
            self._revoked.add(message.epoch)
        if not isinstance(message, Welcome):
            return
        first = self._welcomes.setdefault(message.epoch, message)
        if (first.key, first.members, first.step) != (message.key, message.members, message.step):
            raise Violation(f"epoch {message.epoch} was described in two ways: {first} and {message}")
        if first is not message:
            return
        formed = self._epochs.get(message.epoch)
        if formed is None or formed.names != tuple(each.host for each in message.members):
            raise Violation(f"{message} was said, but the journal says {formed}")
        if [each.rank for each in message.members] != list(range(len(message.members))):
            raise Violation(f"the ranks of epoch {message.epoch} are not complete: {message.members}")
        lanes = [lane for each in message.members for lane in range(*each.lanes)]
        if lanes != list(range(self._job.lanes)):
            raise Violation(f"the lanes of epoch {message.epoch} are not complete: {lanes}")
        if all(each.step != message.step for each in message.members):
            raise Violation(f"nobody in epoch {message.epoch} holds the state of step {message.step}")

    def check_line(self, line: Line) -> None:
        """The journal counts epochs up and steps one by one, and a step only when all of its epoch were done."""
        match line:
            case Formed(epoch=epoch, step=step):
                if epoch <= max(self._epochs, default=0):
                    raise Violation(f"epoch {epoch} began after epoch {max(self._epochs)}")
                if step != len(self.commits):
                    raise Violation(f"epoch {epoch} begins at step {step}, after {len(self.commits)} commits")
                self._epochs[epoch] = line
            case Committed():
                self._check_commit(line)
                self.commits.append(line)
            case Ended(words=words):
                self.ended = words

    def check_end(self, name: str, error: PhalanxError) -> None:
        """Nobody ends because the machines contradict each other, or is sent away from a run that goes on."""
        is_sent_away = isinstance(error, JoinRefused) and self.ended is None
        if is_sent_away or isinstance(error, ProtocolError | WeightsDiverged):
            raise Violation(f"{name} ended with {error!r}")

    def _check_commit(self, line: Committed) -> None:
        if line.step != len(self.commits):
            raise Violation(f"step {line.step} was committed after {len(self.commits)} commits")
        if line.epoch != max(self._epochs) or line.epoch in self._revoked:
            raise Violation(f"step {line.step} was committed in epoch {line.epoch}, which is over")
        if line.digest != self._calm.digest(line.step):
            raise Violation(f"step {line.step} was committed with a digest of other weights than those before it")
        dones = self._dones.get((line.epoch, line.step), {})
        for name in self._epochs[line.epoch].names:
            if dones.get(name) != line.digest:
                raise Violation(f"step {line.step} was committed, but {name} was not done in epoch {line.epoch}")

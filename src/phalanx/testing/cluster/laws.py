"""What must hold in every run, whatever fails: checked at each thing that a simulated cluster does."""

from collections.abc import Mapping

from phalanx.coordinator.record import Committed, Ended, Formed, Line
from phalanx.errors import JoinRefused, PhalanxError, ProtocolError, WeightsDiverged
from phalanx.testing.cluster.frames import Piece
from phalanx.wire import Done, Message, Revoked, Welcome


class Violation(AssertionError):  # noqa: N818 - named for what happened
    """A promise was broken: the message says which, when, and after what."""


class Laws:
    """All that is known of a run from outside: it remembers, and raises Violation when something does not fit."""

    def __init__(self, lanes: int) -> None:
        self.commits: list[Committed] = []
        self.ended: str | None = None
        self._lanes = lanes
        self._weights: dict[int, bytes] = {}
        self._epochs: dict[int, Formed] = {}
        self._welcomes: dict[int, Welcome] = {}
        self._revoked: set[int] = set()
        self._dones: dict[tuple[int, int], dict[str, bytes]] = {}

    def check_weights(self, name: str, step: int, weights: bytes) -> None:
        """Everybody who holds the state of ``step`` holds the same, and got there by steps that count."""
        if step > len(self.commits):
            raise Violation(f"{name} holds step {step}, but only {len(self.commits)} steps were committed")
        if self._weights.setdefault(step, weights) != weights:
            raise Violation(f"{name} holds other weights than another worker after step {step - 1}")

    def check_result(self, name: str, welcome: Welcome, step: int, pieces: Mapping[int, Piece]) -> None:
        """A result has every lane once, and nothing of another epoch or step."""
        for rank, piece in pieces.items():
            if (piece.epoch, piece.step, piece.rank) != (welcome.epoch, step, rank):
                raise Violation(f"{name} used {piece} in epoch {welcome.epoch}, step {step}")
        lanes = [lane for rank in sorted(pieces) for lane in range(*pieces[rank].lanes)]
        if lanes != list(range(self._lanes)):
            raise Violation(f"{name} made step {step} of the lanes {lanes}")

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
        if lanes != list(range(self._lanes)):
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
        dones = self._dones.get((line.epoch, line.step), {})
        for name in self._epochs[line.epoch].names:
            if dones.get(name) != line.digest:
                raise Violation(f"step {line.step} was committed, but {name} was not done in epoch {line.epoch}")

"""The coordinator's process in a simulated cluster: ``Membership``, its connections, and a journal that outlives it."""

from collections.abc import Iterable

from phalanx.coordinator.decision import Decision, Drop, Record, Say
from phalanx.coordinator.membership import Membership
from phalanx.coordinator.record import Committed, Formed, Line, recall
from phalanx.coordinator.terms import Terms
from phalanx.testing.cluster.laws import Laws
from phalanx.testing.cluster.stage import CLOSED, Caller, Said, SimulatedConnection, Stage
from phalanx.wire import Done, Evict, Halt, Message, Revoked

_COUNTED = {Evict: "evictions", Revoked: "revocations", Halt: "halts"}


class CoordinatorProcess:
    """Carries out what ``Membership`` decides. It may crash before anything that it does, and begin again.

    A line that was being written when it crashed is not in the journal; one that was written is, for good.
    """

    name = "coordinator"

    def __init__(self, stage: Stage, laws: Laws, terms: Terms) -> None:
        self.is_alive = False
        self.journal: list[Line] = []
        self.membership: Membership
        self._stage = stage
        self._laws = laws
        self._terms = terms
        self._life = 0
        self._numbers = 0
        self._workers: dict[int, tuple[SimulatedConnection, Caller]] = {}

    def __repr__(self) -> str:
        return self.name

    def start(self) -> None:
        """Begin, or begin again on the journal."""
        self.is_alive = True
        self._life += 1
        self.membership = Membership(self._terms, b"secret", recall(self.journal), self._stage.now)
        self._keep_time()

    def crash(self) -> None:
        """End without a word; workers hear that at once, or when the kernel finds the machine gone."""
        self.is_alive = False
        self._stage.count("coordinator crashes")
        is_heard = self._stage.pick((True, False))
        for connection, worker in self._workers.values():
            if is_heard:
                self._send(connection, worker, CLOSED)
            else:
                lost_at = self._stage.now + self._terms.patience_s
                self._stage.at(lost_at, worker, worker.hear, connection, CLOSED)
        self._workers.clear()

    def accept(self, worker: Caller) -> SimulatedConnection:
        """Return a new connection of a worker."""
        self._numbers += 1
        connection = SimulatedConnection(self._numbers, worker.name, self._life)
        self._workers[connection.number] = connection, worker
        return connection

    def hear(self, connection: SimulatedConnection, worker: Caller, said: Said) -> None:
        """Take what a worker said."""
        if connection.life != self._life:
            self._send(connection, worker, CLOSED)  # a machine knows which connections it does not know
        if connection.number not in self._workers or (connection.is_cut and said is not CLOSED):
            return
        if said is CLOSED:
            del self._workers[connection.number]
            self._carry_out(self.membership.hang_up(connection.number, self._stage.now))
        else:
            if isinstance(said, Done):
                self._laws.note_heard(worker.name, said)
            self._carry_out(self.membership.hear(connection.number, said, self._stage.now))
        self._keep_time()

    def tick(self) -> None:
        """Do what is due now."""
        self._carry_out(self.membership.tick(self._stage.now))
        self._keep_time()

    def _keep_time(self) -> None:
        if self.is_alive:
            self._stage.tick_at(self, self.membership.next_tick)

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if not self.is_alive:
                return
            match decision:
                case Record(line=line):
                    self._record(line)
                case Say(to=numbers, message=message):
                    self._say(numbers, message)
                case Drop(connection=number):
                    self._drop(number)

    def _record(self, line: Line) -> None:
        if self._stage.dies(self):
            self.crash()
            return
        self._laws.check_line(line)
        self.journal.append(line)
        if isinstance(line, Formed):
            self._stage.count("epochs")
        elif isinstance(line, Committed):
            self._stage.count("commits")

    def _say(self, numbers: tuple[int, ...], message: Message) -> None:
        self._laws.check_said(message)
        if what := _COUNTED.get(type(message)):
            self._stage.count(what)
        if isinstance(message, Revoked) and "which does nothing" in message.words:
            self._stage.count("stalls")
        for number in numbers:
            if number not in self._workers:
                continue
            if self._stage.dies(self):
                self.crash()
                return
            self._send(*self._workers[number], message)

    def _drop(self, number: int) -> None:
        if number in self._workers:
            self._send(*self._workers.pop(number), CLOSED)
            self._carry_out(self.membership.hang_up(number, self._stage.now))

    def _send(self, connection: SimulatedConnection, worker: Caller, said: Said) -> None:
        self._stage.carry(self, worker, ("down", connection.number), worker.hear, connection, said)

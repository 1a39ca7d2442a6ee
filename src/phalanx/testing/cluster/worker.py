"""A worker's process in a simulated cluster: the thread that keeps its connection to the coordinator."""

from collections.abc import Iterable, Mapping

from phalanx.coordinator.participant import (
    REPORT_S,
    Abandon,
    Apply,
    Begin,
    HangUp,
    Move,
    Reconnect,
    ReportWait,
    Stop,
    Tell,
)
from phalanx.errors import PhalanxError
from phalanx.testing.cluster.coordinator import CoordinatorProcess
from phalanx.testing.cluster.frames import Gone
from phalanx.testing.cluster.laws import Laws
from phalanx.testing.cluster.stage import CLOSED, Job, Said, SimulatedConnection, Stage, Takes
from phalanx.testing.cluster.trainer import SimulatedTrainer
from phalanx.wire import Ask, Done, Left

_FIRST_CALL_S = 0.2
_JOIN_S = 100.0  # a worker that is never admitted gives up


class WorkerProcess(SimulatedTrainer):
    """Carries out what ``Participant`` decides. It may crash before anything that it does."""

    def __init__(
        self,
        name: str,
        stage: Stage,
        laws: Laws,
        job: Job,
        coordinator: CoordinatorProcess,
        peers: Mapping[str, SimulatedTrainer],
    ) -> None:
        super().__init__(name, stage, laws, job, peers)
        self.ending: PhalanxError | str | None = None
        self.connection: SimulatedConnection | None = None
        self._coordinator = coordinator
        self._has_called = False

    def __repr__(self) -> str:
        return self.name

    def start(self) -> None:
        """Call the coordinator, until it answers."""
        self._call()
        self._stage.at(self._stage.now + _JOIN_S, self, self.give_up)

    def give_up(self) -> None:
        """Leave if no epoch has begun for this worker."""
        if self._last_epoch == 0:
            self._stage.count("never admitted")
            self.leave()

    def hear(self, connection: SimulatedConnection, said: Said) -> None:
        """The coordinator said something."""
        if connection is not self.connection or (connection.is_cut and said is not CLOSED):
            return
        if said is CLOSED:
            self.connection = None
            self._do(self._participant.lost("the connection closed", self._stage.now))
            return
        if isinstance(said, Left):
            self._note_gone(said.rank)
        elif isinstance(said, Ask):
            self._explain()
        self._do(self._participant.hear(said, self._stage.now))

    def tick(self) -> None:
        """Do what is due now."""
        self._do(self._participant.tick(self._stage.now))

    def crash(self) -> None:
        """End without a word; the others notice that connections closed, or only the kernel finds the machine gone."""
        self._stage.count("worker crashes")
        self._end("crashed", is_noticed=self._stage.pick((True, False)))

    def leave(self) -> None:
        """Leave on purpose."""
        self._do(self._participant.leave())
        if self.is_alive:
            self._end("left", is_noticed=True)

    def _call(self) -> None:
        self._stage.post(Takes.CALLING, ("call", self.name), self, self._connect)

    def _connect(self) -> None:
        coordinator, stage = self._coordinator, self._stage
        if coordinator.is_alive and stage.can_reach(self, coordinator):
            self._has_called = True
            self.connection = coordinator.accept(self)
            self._do(self._participant.reached(stage.now))
        elif self._has_called:
            self._do(self._participant.lost("it could not be reached", stage.now))
        else:
            stage.at(stage.now + _FIRST_CALL_S, self, self._connect)

    def _do(self, moves: Iterable[Move]) -> None:
        for move in moves:
            if self._stage.dies(self):
                self.crash()
            if not self.is_alive:
                return
            self._make(move)
        if self.is_alive:
            self._stage.tick_at(self, self._participant.next_tick)

    def _make(self, move: Move) -> None:
        match move:
            case Tell(message=message):
                self._tell(message)
            case Reconnect():
                self._call()
            case ReportWait():
                self._explain(REPORT_S)
            case HangUp():
                self._tell(CLOSED)
                self.connection = None
            case Stop(error=error):
                self._laws.check_end(self.name, error)
                self._end(error, is_noticed=True)
            case Begin() | Abandon() | Apply():
                self._stage.post(Takes.NOTICING, ("main", self.name), self, self.notice, move)

    def _tell(self, said: Said) -> None:
        if isinstance(said, Done):
            self._laws.check_done(self.name, self._made_in, said)
        if connection := self.connection:
            line = "up", connection.number
            self._stage.carry(self, self._coordinator, line, self._coordinator.hear, connection, self, said)

    def _end(self, ending: PhalanxError | str, *, is_noticed: bool) -> None:
        self.is_alive = False
        self.ending = ending
        if is_noticed:
            self._tell(CLOSED)
            self._send_all(Gone(self._last_epoch, self._rank))
        elif connection := self.connection:
            lost_at, coordinator = self._stage.now + self._job.terms.patience_s, self._coordinator
            self._stage.at(lost_at, coordinator, coordinator.hear, connection, self, CLOSED)
        self._stage.tick_at(self, None)

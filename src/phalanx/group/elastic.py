"""A run whose members change: this worker stays in it while groups come and go, one for each epoch."""

import hashlib
import logging
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import msgspec

from phalanx.errors import BadFrame, EpochChanged, Evicted, LinkClosed, TransportError
from phalanx.group.connect import Join, call_coordinator, first_host, listen, make_hello, published
from phalanx.group.context import GroupContext
from phalanx.group.group import Group, make_group
from phalanx.telemetry import OFF, Recorder
from phalanx.transport import Deadline, Epoch, TcpConnector, shortage_in_words
from phalanx.wire import Address, Commit, LinkHello, Welcome

ENDS_EPOCH = (EpochChanged, Evicted, TransportError, BadFrame)
"""Errors of a group after which a run goes on in another epoch, unless its coordinator says otherwise."""

_log = logging.getLogger("phalanx")


class ElasticRun:
    """This worker's part in a run. ``group`` is the group of the present epoch.

    When a call of the group raises one of ``ENDS_EPOCH``, the epoch is over: ``next_group`` waits for the next one. It
    raises the reason if there will be none for this worker. ``announce`` is called with this worker's rank in every
    epoch, and ``leave`` when the run is closed.
    """

    def __init__(
        self,
        join: Join,
        announce: Callable[[int], None] = lambda _: None,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        assert join.lanes is not None, "a run takes steps"
        self._join = join
        self._announce = announce
        self._is_over = False
        self._recorder = OFF
        deadline = Deadline.after(join.timeout_s)
        with shortage_in_words("cannot join the run"), ExitStack() as undo:
            self._client = call_coordinator(join, deadline)
            undo.callback(self._client.close)
            acceptor = listen(self._client.local_host, join)
            undo.callback(acceptor.close)
            welcome, epoch = self._client.join(make_hello(join, published(self._client.local_host, acceptor)), deadline)
            self._connector = TcpConnector(acceptor, *_described(welcome), self._client.patience_s)
            undo.callback(self._connector.close)
            self._upcoming: tuple[Welcome, Epoch] | None = (welcome, epoch)
            self._group: Group | None = None
            self._epoch: Epoch | None = None
            self._welcome = welcome
            self.next_group()
            self._undo = ExitStack()
            self._undo.callback(leave)
            self._undo.push(undo.pop_all())
            self._undo.callback(lambda: self._client.leave(is_over=self._is_over))

    @property
    def group(self) -> Group:
        """The group of the present epoch, or of the last one if there is none."""
        assert self._group is not None, "a run has a group from the start"
        return self._group

    @property
    def step(self) -> int:
        """The next step of the run when the present epoch began."""
        return self._welcome.step

    @property
    def is_known_to_hold(self) -> int:
        """The step whose state the coordinator believes this worker to hold."""
        return self._welcome.members[self._welcome.rank].step

    @property
    def is_kept(self) -> bool:
        """Whether rank 0 of the present epoch can write what the run leaves behind. If it cannot, no member can."""
        return self._welcome.members[0].can_keep

    @property
    def guests(self) -> list[int]:
        """The ranks of the present epoch that cannot write what the run leaves behind."""
        return [member.rank for member in self._welcome.members if not member.can_keep]

    def next_group(self) -> Group:
        """Close the group, wait until an epoch begins in which all members meet, and return its group."""
        deadline = Deadline.after(self._join.timeout_s)
        while True:
            self._end_epoch()
            self._welcome, self._epoch = self._next_epoch(deadline)
            try:
                self._group = self._meet(self._welcome, self._epoch, deadline)
            except ENDS_EPOCH as error:
                _log.info("epoch %d did not begin here: %r", self._welcome.epoch, error)
                continue
            self._announce(self._group.rank)
            return self._group

    def meet_once_more(self, timeout_s: float) -> Group:
        """Return a group of the members of the last epoch in which the coordinator has no part, when all are there.

        Workers whose coordinator stays away can so save what they hold. If one does not come within ``timeout_s``,
        raise a TransportError. It is also the timeout of the calls of the group.
        """
        self._end_epoch()
        key = hashlib.sha256(b"once more" + self._welcome.key).digest()[: len(self._welcome.key)]
        self._welcome = msgspec.structs.replace(self._welcome, epoch=self._welcome.epoch + 1, key=key)
        self._epoch = Epoch(self._welcome.epoch)
        self._group = self._meet(self._welcome, self._epoch, Deadline.after(timeout_s), has_coordinator=False)
        self._group.timeout_s = timeout_s
        return self._group

    def record_to(self, recorder: Recorder) -> None:
        """Record from now on, in every epoch, which calls this worker makes, and for whom it waits in them."""
        self._recorder = recorder
        self._client.keep_clock(recorder.clock)
        self.group.record_to(recorder)

    def send_records(self, batch: bytes) -> None:
        """Let the coordinator write a batch of telemetry, for a worker that does not see the directory of the run."""
        self._client.send_records(batch)

    def commit(self, loss: float, digest: bytes) -> None:
        """Report that this worker is done with its step, and return when the step counts.

        Raises ``EpochChanged`` if an epoch begins in which the step has to be done again. A worker that loses the
        coordinator hears from the next one whether its step had counted.
        """
        if self._epoch:
            self._client.done(self._epoch, loss, digest)
        word = self._client.wait_for_word(Deadline.after(self._join.timeout_s))
        if not isinstance(word, Commit):
            self._upcoming = word
            raise EpochChanged(f"epoch {self._welcome.epoch} ended before its step was committed: do the step again")

    def hold(self, step: int) -> None:
        """Say that this worker now has the state of ``step``."""
        if self._epoch:
            self._client.hold(self._epoch, step)

    def conclude(self) -> None:
        """Say, when this worker leaves, that the run has come to its end: nobody has to go on with it."""
        self._is_over = True

    def close(self) -> None:
        """Leave the run. Closing twice is harmless."""
        self._end_epoch()
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._group and self._epoch:
            self._group.__exit__(kind, error, trace)  # which tells the others if this worker's program failed
        self.close()

    def _next_epoch(self, deadline: Deadline) -> tuple[Welcome, Epoch]:
        if self._upcoming is None:
            word = self._client.wait_for_word(deadline)
            assert not isinstance(word, Commit), "a commit comes only while this worker waits for it"
            return word
        word, self._upcoming = self._upcoming, None
        return word

    def _meet(self, welcome: Welcome, epoch: Epoch, deadline: Deadline, *, has_coordinator: bool = True) -> Group:
        """Return the group of an epoch that has begun, when all its members have come to it."""
        epoch.check()
        epoch.recorder = self._recorder
        self._connector.begin(*_described(welcome), self._client.patience_s)
        registry = self._client if has_coordinator else None
        hosts = [member.host for member in welcome.members]
        context = GroupContext(self._connector, epoch, registry, hosts, first_host(welcome))
        ranks = [member.rank for member in welcome.members]
        timeout_s, lanes = self._join.timeout_s, self._join.lanes
        return make_group(context, ranks, welcome.rank, welcome.key, deadline, timeout_s, lanes=lanes)

    def _end_epoch(self) -> None:
        if self._epoch:
            self._epoch.revoke(LinkClosed("this epoch is over on this side"))
            if self._group:
                self._group.close()
            self._epoch.close()
            self._epoch = None


def _described(welcome: Welcome) -> tuple[dict[int, tuple[Address, ...]], LinkHello]:
    """Return the addresses of all members, and what this rank says of itself to them."""
    addresses = {member.rank: member.addresses for member in welcome.members}
    return addresses, LinkHello(welcome.epoch, welcome.rank, welcome.key)

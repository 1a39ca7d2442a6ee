"""The group: ranks that make the same calls in the same order."""

import atexit
import copy
import hashlib
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import MethodType, TracebackType
from typing import Self, TypeVar
from weakref import WeakMethod, WeakSet, WeakValueDictionary, finalize

import numpy as np

from phalanx.buffers import Array, DType
from phalanx.collectives import Call, Choice, Team, blocks_added, blocks_added_first
from phalanx.errors import ConfigError, Halted, LinkClosed, OutOfResources, PeerLost, PhalanxError
from phalanx.group.assemble import assemble
from phalanx.group.calls import Calls
from phalanx.group.context import GroupContext, arbitrate, report_death
from phalanx.group.objects import ObjectOperations
from phalanx.group.operations import Channel, Operation, Operations, check_shape, parse_collective
from phalanx.group.resources import Resources
from phalanx.group.tagged_calls import TaggedCalls
from phalanx.group.transaction import commit, halt
from phalanx.group.unequal import UnequalOperations
from phalanx.telemetry import NOTHING, Activity, Recorder
from phalanx.transport import Deadline, Pending, simulated_machine_of
from phalanx.wire import Cause, Collective

Result = TypeVar("Result")

_BUCKET_CALLS = (Collective.FOLD_LANES, Collective.SCATTER_LANES)
_FIRST_PORT, _PORTS = 30_000, 2_000  # below the range of ports that systems assign to clients


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a rank has done in its group so far.

    ``waited_s`` has the seconds that this rank has waited for each other rank.
    """

    calls: dict[str, int]
    seconds: float
    bytes_sent: int
    bytes_received: int
    waited_s: dict[int, float]


class Group(Calls, TaggedCalls):
    """Ranks that make the same calls in the same order, each with its own data.

    Every call ends with its result or with an error that names the rank that caused it. After any error but
    ``ConfigError`` the group cannot be used any more: every later call raises this error again.
    """

    def __init__(
        self,
        context: GroupContext,
        names: Sequence[int],
        team: Team,
        key: bytes,
        timeout_s: float,
        leave: Callable[[], None],
        lanes: int | None = None,
        parent: "Group | None" = None,
    ) -> None:
        self.lanes = lanes
        """The number of lanes of a step; None in a group that takes no steps."""
        self.timeout_s = timeout_s
        self._context = context
        self._parent = parent  # whose connections a subgroup uses
        self._names = tuple(names)  # what the world calls each rank of this group
        self._team = team
        self._key = key
        self._name = key[:8].hex()
        self._operations = Operations(team)
        self._unequal = UnequalOperations(team)
        self._objects = ObjectOperations(team)
        self._resources = Resources(team, leave)
        self._sequences: Counter[Channel | None] = Counter()
        self._subgroups: WeakSet[Group] = WeakSet()
        self._asking = threading.Lock()
        self._times_asked: Counter[tuple[int, ...]] = Counter()  # for the same subgroup
        self._calls = [0] * (max(Collective) + 1)
        self._seconds = 0.0
        self._failure: PhalanxError | None = None
        self._is_closed = False
        self.companions: WeakSet[object] = WeakSet()
        """Objects that use this group, such as a ``DataParallel``, so that others can find them."""
        self._when_dropped = finalize(self, self._resources.close_beside)
        self._when_dropped.atexit = False  # at exit, _close_open_groups closes the group instead
        _open_groups[id(self)] = self

    @property
    def rank(self) -> int:
        """This member's number."""
        return self._team.rank

    @property
    def size(self) -> int:
        """How many members there are."""
        return self._team.size

    @property
    def epoch(self) -> int:
        """The number of this membership."""
        return self._context.epoch.number

    @property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host, which share memory."""
        return self._team.topology.hosts

    @property
    def host_position(self) -> tuple[int, int]:
        """The position of this rank among the ranks of its host, from 0 on, and their number."""
        host = self._team.topology.host_of(self.rank)
        return host.index(self.rank), len(host)

    @property
    def local_rank(self) -> int:
        """The position of this rank among the ranks of this group on its machine, whether they share memory or not."""
        return self._local[0]

    @property
    def local_size(self) -> int:
        """How many ranks of this group are on this rank's machine."""
        return self._local[1]

    @property
    def _local(self) -> tuple[int, int]:
        machines = [simulated_machine_of(self._context.hosts[name]) for name in self._names]
        here = machines[self.rank]
        return machines[: self.rank].count(here), machines.count(here)

    @property
    def master(self) -> tuple[str, int]:
        """The host of the world's rank 0 and a port for it to listen at, alike on all ranks: see MASTER_ADDR of torch.

        Nobody has reserved the port. It is taken from the key of the group, so that two groups seldom have the same.
        """
        number = int.from_bytes(hashlib.sha256(self._key + b"master").digest()[:8], "big")
        return self._context.first_host, _FIRST_PORT + number % _PORTS

    def __repr__(self) -> str:
        where = f"local rank {self.local_rank} of {self.local_size} on {socket.gethostname()}"
        state = ", closed" if self._is_closed else f", failed: {self._failure}" if self._failure else ""
        return f"<Group: rank {self.rank} of {self.size}, {where}, epoch {self.epoch}{state}>"

    def blocks_added_here(self, count: int, owners: Sequence[int] | None = None) -> Sequence[int]:
        """Return the numbers of the blocks, of ``count``, that this rank adds up in a ``fold_lanes``.

        With ``owners``, the call is a ``scatter_lanes``. This rank also measures these blocks for the ``Finish``.
        """
        return blocks_added(count, owners, self.rank, self._team.topology)

    def blocks_added_first(self, count: int, owners: Sequence[int] | None = None) -> Sequence[int]:
        """Return the numbers of the blocks, of ``count``, that this rank is the first to add up, maybe for its host.

        No other rank reads these blocks in this rank's ``pieces``, so they may be passed in ``own`` instead.
        """
        return blocks_added_first(count, owners, self.rank, self._team.topology)

    def enqueue(self, what: str, function: Callable[..., Result], *arguments: object) -> Pending[Result]:
        """Call ``function`` after all calls that were begun before, and before all that are begun later.

        It runs in the thread of the ``_nowait`` calls. It must not call this group, and no deadline ends it. ``what``
        describes it in errors.
        """
        self._check_usable()
        return self._resources.executor(None, self.rank).submit(what, self._call, function, arguments)

    def allocate(
        self, shape: int | Sequence[int], dtype: DType | str | type = np.float32, *, shared: bool = False
    ) -> Array:
        """Return a zeroed array that the other ranks of this host can read, so that collectives need not copy it.

        With ``shared``, all ranks call this together, and the ranks of a host get the same memory, for results that all
        of them read. If ranks cannot share memory, this is an ordinary array.
        """
        axes, kind = check_shape(shape), DType.parse(dtype)
        if shared:
            made = self._now(self._operations.allocate(axes, kind), None)[0]
        else:
            made = self._team.allocate_own(axes, kind)
        return made if isinstance(dtype, DType | str) else made.view(dtype)

    def subgroup(self, ranks: Sequence[int], *, timeout_s: float | None = None) -> "Group":
        """Return a group of these ranks, numbered in the given order. Exactly these ranks call this."""
        wanted = tuple(ranks)
        if len(set(wanted)) != len(wanted) or not all(rank in range(self.size) for rank in wanted):
            raise ConfigError(f"a subgroup has different ranks from 0 to {self.size - 1}, not {list(wanted)}")
        if self.rank not in wanted:
            raise ConfigError(f"rank {self.rank} is not among {list(wanted)}: only members of a subgroup ask for it")
        self._check_usable()
        with self._asking:  # threads that ask at the same time get different keys
            self._times_asked[wanted] += 1
            key = hashlib.sha256(self._key + repr((wanted, self._times_asked[wanted])).encode()).digest()[:16]
        names = [self._names[rank] for rank in wanted]
        seconds = timeout_s or self.timeout_s
        name = self._names[self.rank]
        subgroup = make_group(self._context, names, name, key, Deadline.after(seconds), self.timeout_s, parent=self)
        self._subgroups.add(subgroup)
        return subgroup

    def abort(self) -> None:
        """End all calls of this group, and of all groups that were made together with it, on all ranks."""
        self._failure = self._failure or self._give_up(LinkClosed("it has aborted its group"))

    def commit(self, loss: float, digest: bytes, *, timeout_s: float | None = None) -> None:
        """Report that this rank is done with its step; return when it counts: all are done, with the same digest."""
        deadline = self._begin(timeout_s)
        try:
            commit(self._context, loss, digest, deadline)
        except PhalanxError as error:
            self._failure = error
            raise

    def halt(self, error: Halted) -> Halted:
        """Stop all ranks at this step with ``error``. Every later call on any rank raises it.

        Return the error to raise: its words also say which process on which host its rank is.
        """
        self._check_usable()
        self._failure = told = halt(self._context, error)
        return told

    def explain(self, collective: str, nbytes: int) -> Choice:
        """Return how a collective over ``nbytes`` would be carried out, and why. Print it to read it."""
        if nbytes < 0:
            raise ConfigError(f"a buffer has 0 bytes or more, not {nbytes}")
        return self._team.choose(parse_collective(collective), nbytes)

    @property
    def waited_s(self) -> float:
        """How long this rank has waited for others so far, in seconds."""
        return sum(self._team.counts()[2].values())

    def statistics(self) -> Statistics:
        """Return what this rank has done in this group so far."""
        sent, received, waited = self._team.counts()
        calls = {each.name.lower(): self._calls[each] for each in Collective if self._calls[each]}
        return Statistics(calls, self._seconds, sent, received, waited)

    def record_to(self, recorder: Recorder) -> None:
        """Record from now on which calls this rank makes, and for whom it waits in them."""
        self._context.epoch.recorder = recorder

    def close(self) -> None:
        """Finish all calls that were begun, and leave the group. Closing twice is harmless.

        A group that is dropped without this leaves by itself.
        """
        if self._is_closed or self._resources.is_copy:
            return
        for subgroup in list(self._subgroups):
            subgroup.close()
        self._is_closed = True
        _open_groups.pop(id(self), None)
        self._when_dropped.detach()
        self._resources.close()

    def on_close(self, close: Callable[[], None]) -> None:
        """Call ``close`` when this group has been closed. If it is a method, its object is not kept alive."""
        self._resources.afterwards.append(WeakMethod(close) if isinstance(close, MethodType) else lambda: close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_leaving = error is None or (isinstance(error, SystemExit) and not error.code)
        if not is_leaving and error is not None and self._failure is None and not self._resources.is_copy:
            self._give_up(error)
        self.close()

    # Doing

    def _now(self, operation: Operation[Result], timeout_s: float | None) -> Result:
        deadline = self._begin(timeout_s)
        executor = self._resources.executor(operation.channel, self.rank)
        result: Result = executor.run(operation.signature, self._perform, operation, deadline)
        return result

    def _later(self, operation: Operation[Result], timeout_s: float | None) -> Pending[Result]:
        deadline = self._begin(timeout_s)
        executor = self._resources.executor(operation.channel, self.rank)
        return executor.submit(operation.signature, self._perform, operation, deadline)

    def _begin(self, timeout_s: float | None) -> Deadline:
        self._check_usable()
        return Deadline.after(self.timeout_s if timeout_s is None else timeout_s)

    def _call(self, function: Callable[..., Result], arguments: tuple[object, ...]) -> Result:
        """Call a function from ``enqueue``, now that it is at the head of the queue."""
        if self._failure is not None:
            raise copy.copy(self._failure)
        return function(*arguments)

    def _perform(self, operation: Operation[Result], deadline: Deadline) -> Result:
        """Perform an operation that is at the head of its queue. Only now does the call get its number."""
        began, began_ns, recorder = time.perf_counter(), time.monotonic_ns(), self._context.epoch.recorder
        channel, signature = operation.channel, operation.signature
        if self._failure is not None:
            raise copy.copy(self._failure)
        try:
            self._context.epoch.check()
            self._sequences[channel] += 1
            call = Call(signature, self._sequences[channel], deadline, "" if channel else self._name)
            return operation.perform(call)
        except ConfigError:
            raise
        except OutOfResources as error:  # the call is half done, and nobody can finish it
            self._failure = self._give_up(error)
            raise
        except PhalanxError as error:
            if self._failure is None:
                self._failure = arbitrate(error, self._context)
            raise copy.copy(self._failure) from None  # without our own frames, which would only hide the message
        except BaseException as error:  # an interrupt, or no memory: the call is half done, and nobody can finish it
            self._failure = self._give_up(error)
            raise
        finally:
            self._calls[signature.collective] += 1
            self._seconds += time.perf_counter() - began
            if recorder.is_on:
                self._record(recorder, signature.collective, began_ns)

    def _record(self, recorder: Recorder, collective: Collective, began_ns: int) -> None:
        """Record a call. If it is the exchange of a bucket, this thread is done with that bucket now."""
        is_of_bucket = collective in _BUCKET_CALLS
        recorder.record(Activity.EXCHANGE if is_of_bucket else Activity.CALL, began_ns)
        if is_of_bucket:
            recorder.about(NOTHING)

    def _check_usable(self) -> None:
        if self._is_closed:
            raise LinkClosed("this group was closed on this side: connect again")
        if self._failure is not None:
            raise copy.copy(self._failure)

    def _give_up(self, error: BaseException) -> PeerLost:
        """Tell the other ranks that this rank's own program failed, and end all waiting calls here."""
        name = self._names[self.rank]
        lost = PeerLost(f"rank {name} failed: {traceback.format_exception_only(error)[-1].strip()}", peer=name)
        if self._context.registry:
            self._context.registry.report(self._context.epoch, Cause.RAISED, name, str(lost))
        self._context.epoch.revoke(lost)
        return lost


def make_group(
    context: GroupContext,
    names: Sequence[int],
    name: int,
    key: bytes,
    deadline: Deadline,
    timeout_s: float,
    leave: Callable[[], None] = lambda: None,
    lanes: int | None = None,
    parent: Group | None = None,
) -> Group:
    """Return a group for the rank that is called ``name`` in the world; ``names`` has all its ranks.

    ``leave`` is called when the group is closed.
    """
    rank = names.index(name)
    hosts = [context.hosts[each] for each in names]
    try:
        team = assemble(rank, names, hosts, context.connector, key, deadline, context.epoch, is_world=parent is None)
    except PhalanxError as error:
        raise copy.copy(arbitrate(error, context)) from None
    if parent is None:
        team.watch(partial(report_death, context))
    return Group(context, names, team, key, timeout_s, leave, lanes, parent)


_open_groups: WeakValueDictionary[int, Group] = WeakValueDictionary()


@atexit.register
def _close_open_groups() -> None:
    """Close all groups as a ``with`` block would. A script that failed tells the other ranks why."""
    error = getattr(sys, "last_value", None)
    for group in reversed(list(_open_groups.values())):
        group.__exit__(error and type(error), error, None)

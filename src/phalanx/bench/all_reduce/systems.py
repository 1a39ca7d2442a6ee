"""All systems behind one interface: connect, make a buffer, wait for each other, all-reduce."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np

from phalanx import collectives
from phalanx.bench.all_reduce.plan import AllReduceSystem
from phalanx.buffers import Array, DType, ReduceOp
from phalanx.errors import ConfigError
from phalanx.gradient_server import Whole, WorkerClient
from phalanx.group import Group, Join, Over, connect
from phalanx.transport import Deadline, parse_address
from phalanx.wire import Collective, Signature

_JOIN_S = 60.0
_CALL_S = 300.0


@dataclass(frozen=True, slots=True)
class Subject:
    """An all-reduce ready to be measured. It reads ``source`` and writes the sum, or the mean, to ``result``."""

    source: Array
    result: Array
    reduce: Callable[[], object]
    is_mean: bool = False


@dataclass(frozen=True, slots=True)
class Connected:
    """One rank of a connected system. ``prepare`` makes the all-reduce of a given number of f32 elements."""

    rank: int
    barrier: Callable[[], object]
    prepare: Callable[[int], Subject]


def join(system: AllReduceSystem, rank: int, ranks: int, meeting: str) -> AbstractContextManager[Connected]:
    """Connect to the other ranks of ``system``.

    ``meeting`` is where its ranks find each other: the coordinator's address, or the file that Gloo meets in. Under
    Open MPI, mpirun says which rank this is and who the others are.
    """
    match system:
        case AllReduceSystem.GLOO:
            return _gloo(rank, ranks, meeting)
        case AllReduceSystem.OPENMPI:
            return _openmpi()
        case AllReduceSystem.GRADIENT_SERVER:
            return _gradient_server(rank, ranks, meeting)
        case _:
            return _phalanx(system, rank, ranks, meeting)


@contextmanager
def _phalanx(system: AllReduceSystem, rank: int, ranks: int, meeting: str) -> Iterator[Connected]:
    over = Over.TCP if system in (AllReduceSystem.TCP, AllReduceSystem.STAR, AllReduceSystem.STAR_APART) else Over.AUTO
    asked = Join(coordinator=(parse_address(meeting),), rank=rank, size=ranks, over=over, timeout_s=_JOIN_S)
    with connect(asked) as group:
        if over is Over.AUTO and len(group.hosts) > 1:
            raise ConfigError(f"{system.value} needs shared memory, which the ranks cannot have here: measure tcp")
        yield Connected(group.rank, group.barrier, lambda length: _subject(group, system, length))


def _subject(group: Group, system: AllReduceSystem, length: int) -> Subject:
    if system is AllReduceSystem.ARENA:
        source, result = group.allocate(length), group.allocate(length, shared=True)
        return Subject(source, result, lambda: group.all_reduce(source, out=result))
    array = group.allocate(length) if system is AllReduceSystem.INPLACE else np.empty(length, np.float32)
    if system in (AllReduceSystem.STAR, AllReduceSystem.STAR_APART):
        return Subject(array, array, lambda: _reduce_through_root(group, array))
    return Subject(array, array, lambda: group.all_reduce(array))


def _reduce_through_root(group: Group, array: Array) -> None:
    """Run the plan that sends everything through rank 0, which no group chooses by itself."""
    call = collectives.Call(
        Signature(Collective.ALL_REDUCE, DType.F32, len(array), ReduceOp.SUM), 0, Deadline.after(_CALL_S)
    )
    links = group._team.links  # noqa: SLF001 - for the same reason
    plan = collectives.star.all_reduce(group.rank, group.size, 0, len(array))
    links.run(plan, call, array, array, DType.F32, ReduceOp.SUM)


@contextmanager
def _gradient_server(rank: int, ranks: int, meeting: str) -> Iterator[Connected]:
    coordinator, server = meeting.split(",")
    steps = itertools.count()
    with (
        _phalanx(AllReduceSystem.TCP, rank, ranks, coordinator) as member,
        WorkerClient(parse_address(server), timeout_s=_CALL_S) as client,
    ):

        def prepare(length: int) -> Subject:
            array = np.empty(length, np.float32)

            def exchange() -> object:
                return client.exchange(next(steps), array, Whole(), out=array)

            return Subject(array, array, exchange, is_mean=True)

        yield Connected(member.rank, member.barrier, prepare)


@contextmanager
def _gloo(rank: int, ranks: int, meeting: str) -> Iterator[Connected]:
    import torch  # noqa: PLC0415 - the other systems do without it
    from torch import distributed  # noqa: PLC0415

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", store=distributed.FileStore(meeting, ranks), rank=rank, world_size=ranks)

    def prepare(length: int) -> Subject:
        tensor = torch.empty(length, dtype=torch.float32)
        return Subject(tensor.numpy(), tensor.numpy(), lambda: distributed.all_reduce(tensor))

    try:
        yield Connected(rank, distributed.barrier, prepare)
    finally:
        distributed.destroy_process_group()


@contextmanager
def _openmpi() -> Iterator[Connected]:
    from mpi4py import MPI  # noqa: PLC0415 - importing it starts MPI

    world = MPI.COMM_WORLD

    def prepare(length: int) -> Subject:
        array = np.empty(length, np.float32)
        return Subject(array, array, lambda: world.Allreduce(MPI.IN_PLACE, array, MPI.SUM))

    yield Connected(world.Get_rank(), world.Barrier, prepare)

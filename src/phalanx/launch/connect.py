"""Finds the group of this process, however the process was started."""

import importlib
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial

from phalanx.coordinator import Coordinator, Terms
from phalanx.errors import ConfigError, ConnectError, JoinRefused, PhalanxError, ProtocolError
from phalanx.group import ElasticRun, Group, Join, Over, alone
from phalanx.group import connect as join_group
from phalanx.launch.env import Launch, parse_over, read_credentials, read_launch, read_times
from phalanx.launch.rank_channel import tell_rank
from phalanx.launch.torch_env import publish, torch_variables
from phalanx.transport import Deadline, is_loopback, parse_address
from phalanx.wire import Address

_NAP_S = 0.05
_FAREWELL_S = 1.0  # enough for the coordinator to tell everybody that rank 0 failed


def connect(
    address: str | None = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    timeout_s: float = 300.0,
    over: str = "auto",
    host: str | None = None,
    lanes: int | None = None,
    step: int = 0,
) -> Group:
    """Wait for all processes that were started together with this one, and return their group.

    These are all ranks that ``phalanx run``, ``phalanx join``, torchrun, srun or mpirun started. A process that none of
    them started is a group of one. A program with a launcher of its own passes an ``address`` such as ``host:port``.
    With ``rank`` and ``size``, rank 0 runs the coordinator there; without them, ``phalanx coordinator`` runs there.

    ``timeout_s`` limits how long this call waits for the other ranks. It is also the timeout of every later call that
    gives none. ``over="tcp"`` sends all data by TCP and uses no shared memory. ``host`` names a simulated machine for
    this rank: ranks on different machines share no memory. With ``lanes`` the group takes steps, each of which counts
    on all ranks or on none; ``step`` is the first. An ``Engine`` needs this.
    """
    chosen = parse_over(over, "over")
    launch = _find_launch(address, rank, size)
    if launch is None:
        return alone(timeout_s, lanes)
    join = replace(
        make_join(launch, timeout_s),
        host=launch.host if host is None else host,
        over=launch.over if chosen is Over.AUTO else chosen,
        lanes=lanes,
        step=step,
    )
    if launch.is_hosted:
        return _host(launch, join) if launch.rank == 0 else _seek(join)
    group = join_group(join)
    tell_rank(launch.channel, group.rank)
    if launch.rank is None and address is None:  # phalanx join could not know it
        local, master = (group.local_rank, group.local_size), Address(*group.master)
        publish(torch_variables(group.rank, group.size, local, master))
    return group


def _find_launch(address: str | None, rank: int | None, size: int | None) -> Launch | None:
    """Return how this process was started: as the arguments of ``connect`` say or, without any, its environment."""
    if address is None:
        if rank is not None or size is not None:
            raise ConfigError("rank and size are for a launcher of your own: pass the address of rank 0 too")
        return read_launch()
    where = parse_address(address)
    if where.port == 0:
        raise ConfigError(f"{address} must have a port that all ranks know, not 0")
    joining = Launch.joining(where, read_credentials(), read_times())
    if rank is None and size is None:
        return joining
    if rank is None or size is None:
        raise ConfigError("rank and size belong together: pass both, or neither to join a running coordinator")
    if size == 1 and rank == 0:
        return None
    return replace(joining, rank=rank, size=size, job=f"connect-{address}", is_hosted=True)


def join_run(
    *, lanes: int, timeout_s: float = 300.0, over: str = "auto", host: str | None = None, step: int = 0
) -> ElasticRun:
    """Join the run of ``phalanx join`` or ``phalanx run``, whose members may come and go, for an ``Engine``.

    Each step is cut into ``lanes``. ``step`` is the next step of the state that this worker has loaded; a worker that
    comes later gets the state from the others. The other arguments are those of ``connect``. A process that nothing
    started is a run of one.
    """
    parse_over(over, "over")
    if "torch" in sys.modules:
        # torch imports this with the first optimizer, for seconds. After the join all members would wait for it.
        importlib.import_module("torch._dynamo")
    launch = read_launch()
    if launch is None:
        coordinator = Coordinator(terms=Terms.exactly(1))
        try:
            alone = Join(coordinator=(coordinator.address,), timeout_s=timeout_s, lanes=lanes, step=step)
            return ElasticRun(alone, leave=coordinator.close)
        except BaseException:
            coordinator.close()
            raise
    if launch.is_hosted:
        raise ConfigError(
            "under torchrun, srun and mpirun the coordinator ends with rank 0, and so would the run: start `phalanx "
            "coordinator`, and the workers with `phalanx join`"
        )
    return enter_run(launch, lanes=lanes, timeout_s=timeout_s, over=over, host=host, step=step)


def enter_run(
    launch: Launch,
    *,
    lanes: int,
    timeout_s: float,
    over: str = "auto",
    host: str | None = None,
    step: int = 0,
    can_keep: bool = False,
) -> ElasticRun:
    """Join the run that ``launch`` names. The arguments are those of ``join_run``, and ``Join.can_keep``."""
    chosen = parse_over(over, "over")
    join = replace(
        make_join(launch, timeout_s),
        rank=None,  # the coordinator gives ranks: the first ones to those who can keep the run
        size=None,
        host=launch.host if host is None else host,
        over=launch.over if chosen is Over.AUTO else chosen,
        lanes=lanes,
        step=step,
        can_keep=can_keep,
    )
    return ElasticRun(join, partial(tell_rank, launch.channel))


def make_join(launch: Launch, timeout_s: float) -> Join:
    """Return how a process that was started as ``launch`` says joins its group."""
    return Join(
        coordinator=launch.coordinator,
        rank=launch.rank,
        size=launch.size,
        job=launch.job,
        host=launch.host,
        over=launch.over,
        hosted_by=0 if launch.is_hosted else None,
        credentials=launch.credentials,
        timeout_s=timeout_s,
        patience_s=launch.patience_s,
        stall_s=launch.stall_s,
    )


def _host(launch: Launch, join: Join) -> Group:
    """Start the coordinator in this process, and join its group."""
    coordinator, address = _start_coordinator(launch)
    try:
        group = join_group(replace(join, coordinator=(address,)))
    except BaseException:
        coordinator.close()
        raise
    group.on_close(lambda: coordinator.close_when_left(_farewell(join.timeout_s)))
    return group


def _seek(join: Join) -> Group:
    """Join at the first address that has the coordinator of this job: other programs may use the other addresses."""
    deadline = Deadline.after(join.timeout_s)
    candidates = join.coordinator
    while True:
        try:
            group = join_group(replace(join, coordinator=candidates, timeout_s=deadline.remaining_s()))
        except PhalanxError as error:
            if not is_elsewhere(error) or deadline.remaining_s() <= _NAP_S:
                raise
            candidates = (*candidates[1:], candidates[0])
            time.sleep(_NAP_S)
        else:
            group.timeout_s = join.timeout_s
            return group


def is_elsewhere(error: PhalanxError) -> bool:
    """Whether the address belongs to something else: another job, a group that is complete, or another program."""
    match error:
        case JoinRefused():
            return any(words in str(error) for words in ("this is the coordinator of job", "the group is complete"))
        case ConnectError(peer=None) | ProtocolError(peer=None):
            return True  # it hung up, or speaks another protocol
        case _:
            return False


def _start_coordinator(launch: Launch) -> tuple[Coordinator, Address]:
    for address in launch.coordinator:
        where = _bind_host(address.host)
        if launch.credentials.token is None and not is_loopback(where):
            raise ConfigError(
                "ranks on several machines need a token, or anybody could join: make one with `phalanx token > FILE`, "
                "copy it to all of them, and set PHALANX_TOKEN_FILE to its path there"
            )
        with suppress(ConfigError):  # another program uses this port
            terms = Terms.exactly(launch.size, launch.job, patience_s=launch.patience_s, stall_s=launch.stall_s)
            return Coordinator(where, address.port, terms=terms, credentials=launch.credentials), address
    first, last = launch.coordinator[0].port, launch.coordinator[-1].port
    raise ConfigError(
        f"rank 0 cannot start the coordinator: ports {first} to {last} are taken; set PHALANX_COORDINATOR to host:port "
        "with a free port"
    )


def _bind_host(host: str) -> str:
    """Return the address to listen on so that ranks reach it as ``host``: loopback, or every interface."""
    if is_loopback(host):
        return host
    return "::" if ":" in host else "0.0.0.0"  # noqa: S104 - ranks come from other machines


def _farewell(timeout_s: float) -> Deadline:
    """Return how long rank 0 waits for the others to leave; if it failed, only until they have been told."""
    return Deadline.after(_FAREWELL_S if sys.exception() else timeout_s)

"""Finding one's group, however this process was started."""

import sys
import time
from contextlib import suppress
from dataclasses import replace

from phalanx.coordinator import Coordinator, Terms
from phalanx.errors import ConfigError, ConnectError, JoinRefused, PhalanxError, ProtocolError
from phalanx.group import Group, Join, Over, alone
from phalanx.group import connect as join_group
from phalanx.launch.env import Launch, parse_over, read_launch
from phalanx.transport import Deadline, is_loopback
from phalanx.wire import Address

_NAP_S = 0.05
_FAREWELL_S = 1.0  # enough for the coordinator to tell everybody that rank 0 failed


def connect(
    *,
    timeout_s: float = 300.0,
    over: str = "auto",
    host: str | None = None,
    lanes: int | None = None,
    step: int = 0,
) -> Group:
    """Return the group of all processes that were started together; when all of them have come.

    Started by ``phalanx run``, torchrun, srun or mpirun, that is all their ranks; otherwise this process alone.
    ``timeout_s`` limits the waiting for the others here, and later every call for which no other time is given.
    ``over="tcp"`` keeps data off shared memory. ``host`` names a machine to pretend to run on: ranks of different
    hosts share no memory. With ``lanes`` the group takes steps that count for all or for nobody, ``step`` first: an
    ``Engine`` needs that.
    """
    chosen = parse_over(over, "over")
    launch = read_launch()
    if launch is None:
        return alone(timeout_s, lanes)
    join = replace(
        make_join(launch, timeout_s),
        host=launch.host if host is None else host,
        over=launch.over if chosen is Over.AUTO else chosen,
        lanes=lanes,
        step=step,
    )
    if not launch.is_hosted:
        return join_group(join)
    return _host(launch, join) if launch.rank == 0 else _seek(join)


def make_join(launch: Launch, timeout_s: float) -> Join:
    """How a process that was started so finds its group."""
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
    """Start the coordinator in this process, and join there."""
    coordinator, address = _start_coordinator(launch)
    try:
        group = join_group(replace(join, coordinator=(address,)))
    except BaseException:
        coordinator.close()
        raise
    group.on_close(lambda: coordinator.close_when_left(_farewell(join.timeout_s)))
    return group


def _seek(join: Join) -> Group:
    """Join at whichever address is the coordinator of this job: others may have taken the first ones."""
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
    """Whether whoever answered is not our coordinator: of another job, of a group that is over, or something else."""
    match error:
        case JoinRefused():
            return any(words in str(error) for words in ("this is the coordinator of job", "the group is complete"))
        case ConnectError(peer=None) | ProtocolError(peer=None):
            return True  # it hung up, or does not speak as we do
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
        with suppress(ConfigError):  # somebody else is there
            terms = Terms.exactly(launch.size, launch.job, patience_s=launch.patience_s, stall_s=launch.stall_s)
            return Coordinator(where, address.port, terms=terms, credentials=launch.credentials), address
    first, last = launch.coordinator[0].port, launch.coordinator[-1].port
    raise ConfigError(
        f"rank 0 cannot start the coordinator: ports {first} to {last} are taken; set PHALANX_COORDINATOR to host:port "
        "with a free port"
    )


def _bind_host(host: str) -> str:
    """Where to listen so that ``host`` leads there: this machine only, or every interface."""
    if is_loopback(host):
        return host
    return "::" if ":" in host else "0.0.0.0"  # noqa: S104 - ranks come from other machines


def _farewell(timeout_s: float) -> Deadline:
    """How long to wait for the others: a rank that fails goes at once, as they are told so anyway."""
    return Deadline.after(_FAREWELL_S if sys.exception() else timeout_s)

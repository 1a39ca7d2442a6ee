"""Joining a group."""

import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum

from phalanx.coordinator import CoordinatorClient, check_times
from phalanx.errors import ConfigError, LinkClosed
from phalanx.group.context import GroupContext
from phalanx.group.group import Group, make_group
from phalanx.group.transaction import RunMember
from phalanx.transport import (
    Acceptor,
    Connector,
    Credentials,
    Deadline,
    Epoch,
    MemoryConnector,
    TcpConnector,
    are_together,
    host_identity,
    is_loopback,
    keep_apart,
    own_hosts,
    shortage_in_words,
)
from phalanx.wire import Address, Hello, LinkHello, Purpose, Welcome


class Over(Enum):
    """The transports that a group may use."""

    AUTO = "auto"
    """Shared memory where ranks can share it, TCP elsewhere."""
    TCP = "tcp"
    """TCP only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """How a worker finds its group.

    ``coordinator`` lists the addresses to try. ``host`` simulates several machines on one: ranks share memory only
    with ranks of the same ``host``. ``hosted_by`` is the rank whose process runs the coordinator, or None. Workers and
    the coordinator authenticate with ``credentials``. A group that takes steps has ``lanes``, and ``step`` is the next
    step of the state that this rank holds. ``can_keep`` says that it can write what the run leaves behind. If
    ``patience_s`` or ``stall_s`` is None, the coordinator decides.
    """

    coordinator: tuple[Address, ...]
    rank: int | None = None
    size: int | None = None
    job: str = ""
    host: str | None = None
    over: Over = Over.AUTO
    hosted_by: int | None = None
    timeout_s: float = 300.0
    lanes: int | None = None
    step: int = 0
    can_keep: bool = False
    patience_s: float | None = None
    stall_s: float | None = None
    credentials: Credentials = field(default_factory=Credentials)

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise ConfigError(f"a group has at least one rank, not {self.size}")
        if self.rank is not None and (self.rank < 0 or (self.size is not None and self.rank >= self.size)):
            raise ConfigError(f"there is no rank {self.rank} in a group of {self.size}: ranks begin at 0")
        check_lanes(self.lanes, self.size)
        check_times(self.patience_s, self.stall_s)


def check_lanes(lanes: int | None, size: int | None) -> None:
    """Raise ConfigError unless every one of ``size`` ranks gets a lane."""
    if lanes is not None and lanes < (size or 1):
        raise ConfigError(f"{lanes} lanes are too few for {size or 1} workers: each computes at least one")


def alone(timeout_s: float = 300.0, lanes: int | None = None) -> Group:
    """Return a group of one rank, which needs no network."""
    check_lanes(lanes, 1)
    epoch = Epoch(1)
    context = GroupContext(MemoryConnector(), epoch, None, [host_identity()])
    return make_group(context, [0], 0, bytes(16), Deadline.after(timeout_s), timeout_s, epoch.close, lanes)


def connect(join: Join, connector: Connector | None = None) -> Group:
    """Join the group that ``join`` describes, and return when all its ranks have joined.

    ``connector`` makes the links. By default they are TCP connections.
    """
    deadline = Deadline.after(join.timeout_s)
    with shortage_in_words("cannot join the group"), ExitStack() as undo:
        client = call_coordinator(join, deadline)
        undo.callback(client.close)
        acceptor = listen(client.local_host, join)
        undo.callback(acceptor.close)
        welcome, epoch = client.join(make_hello(join, published(client.local_host, acceptor)), deadline)
        undo.callback(epoch.close)
        addresses = {member.rank: member.addresses for member in welcome.members}
        tcp = TcpConnector(acceptor, addresses, LinkHello(epoch.number, welcome.rank, welcome.key), client.patience_s)
        undo.callback(tcp.close)
        hosts = [member.host for member in welcome.members]
        context = GroupContext(connector or tcp, epoch, client, hosts, first_host(welcome))
        ranks = [member.rank for member in welcome.members]
        leave = ExitStack()
        group = make_group(context, ranks, welcome.rank, welcome.key, deadline, join.timeout_s, leave.close, join.lanes)
        leave.push(undo.pop_all())
        leave.callback(epoch.revoke, LinkClosed("this group was closed on this side"))
        leave.callback(client.leave)
        return group


def enlist(join: Join) -> RunMember:
    """Join the run that ``join`` describes without links to its other ranks, for workers that can only call out."""
    assert join.lanes is not None, "a run takes steps"
    deadline = Deadline.after(join.timeout_s)
    client = call_coordinator(join, deadline)
    with ExitStack() as undo:
        undo.callback(client.close)
        welcome, epoch = client.join(make_hello(join, ()), deadline)
        undo.callback(epoch.close)
        context = GroupContext(MemoryConnector(), epoch, client, [member.host for member in welcome.members])
        leave = undo.pop_all()
        leave.callback(client.leave)
        times = join.timeout_s, client.stall_s
        return RunMember(context, welcome.rank, len(welcome.members), join.lanes, *times, leave.close)


def call_coordinator(join: Join, deadline: Deadline) -> CoordinatorClient:
    """Return a connection to the coordinator."""
    return CoordinatorClient(
        join.coordinator,
        deadline,
        credentials=join.credentials,
        hosted_by=join.hosted_by,
        patience_s=join.patience_s,
    )


def make_hello(join: Join, addresses: tuple[Address, ...]) -> Hello:
    """Return what this worker says about itself; other ranks reach it at ``addresses``."""
    here = host_identity()
    if join.host is not None:
        here += f"/{join.host}"
    if join.over is Over.TCP:
        here = keep_apart(here)
    return Hello(
        host=here,
        addresses=addresses,
        pid=os.getpid(),
        rank=join.rank,
        size=join.size,
        job=join.job,
        lanes=join.lanes,
        step=join.step,
        patience_s=join.patience_s,
        stall_s=join.stall_s,
        can_keep=join.can_keep,
        name=f"{socket.gethostname()}:{os.getpid()}:{os.urandom(8).hex()}",
    )


def first_host(welcome: Welcome) -> str:
    """Return where all ranks reach the machine of rank 0: its loopback address only if all of them are there."""
    known = [address.host for address in welcome.members[0].addresses]
    if not are_together(member.host for member in welcome.members):
        known = [host for host in known if not is_loopback(host)] or known
    return known[0]


def listen(local_host: str, join: Join) -> Acceptor:
    """Listen for peers: on loopback if the coordinator is there, otherwise on all interfaces."""
    if all(is_loopback(address.host) for address in join.coordinator):
        host = local_host
    else:
        host = "::" if ":" in local_host else "0.0.0.0"  # noqa: S104 - peers come from other machines
    return Acceptor(host, 0, join.credentials, Purpose.LINK)


def published(local_host: str, acceptor: Acceptor) -> tuple[Address, ...]:
    """Return the addresses at which other ranks reach this acceptor."""
    where = acceptor.address
    hosts = (local_host,) if is_loopback(where.host) else own_hosts(local_host)
    return tuple(Address(host=host, port=where.port) for host in hosts)

"""How the groups of ``torch.distributed`` come about: the first one connects, later ones are subgroups of it."""

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec

from phalanx.coordinator import Coordinator, Terms
from phalanx.errors import ConfigError, JoinRefused
from phalanx.group import Group, Join, alone
from phalanx.group import connect as join_group
from phalanx.launch.connect import make_join
from phalanx.launch.env import LOOPBACK, read_launch
from phalanx.launch.rank_channel import tell_rank
from phalanx.transport import Credentials, Deadline, is_loopback, make_token, own_hosts
from phalanx.wire import Address

Store = Any  # torch.distributed.Store: torch is not type-checked

_KEY = "phalanx"
_FAREWELL_S = 1.0


class _Meeting(msgspec.Struct, frozen=True):
    """What rank 0 tells the others through the store: where its coordinator is, and the token that lets them in."""

    addresses: tuple[Address, ...]
    token: str
    job: str


class TorchWorld:
    """The first group of this process, of which later ones are subgroups."""

    def __init__(self) -> None:
        self._group: Group | None = None
        self._prepared: Group | None = None

    def prepare(self, group: Group) -> None:
        """Use this group, instead of connecting, for the next default group."""
        self._prepared = group

    def open_default(self, store: Store, rank: int, size: int, timeout: timedelta) -> Group:
        """Return the group of all ranks."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.timeout_s = timeout.total_seconds()
            group = prepared
        else:
            group = meet_at_launcher(rank, size, timeout) or meet_in_store(store, rank, size, timeout)
        self._group = group
        return group

    def open_subgroup(self, store: Store, ranks: Sequence[int], rank: int, timeout: timedelta) -> Group:
        """Return a group of some ranks: a subgroup of the default group, or a new one if another backend has that."""
        if self._group is None:
            return meet_in_store(store, rank, len(ranks), timeout)
        group = self._group.subgroup(ranks)
        group.timeout_s = timeout.total_seconds()
        return group

    def forget(self, group: Group) -> None:
        """Know that a group was closed."""
        if group is self._group:
            self._group = None


def meet_at_launcher(rank: int, size: int, timeout: timedelta) -> Group | None:
    """Join the group of the coordinator that ``phalanx run`` or ``phalanx join`` has; None if there is none to join."""
    try:
        launch = read_launch()
    except ConfigError:  # another launcher's variables, of which torch needs fewer
        return None
    if launch is None or launch.is_hosted or (launch.rank, launch.size) != (rank, size):
        return None
    try:
        group = join_group(_patient(make_join(launch, timeout.total_seconds()), timeout))
    except JoinRefused:  # all ranks of this run are in a group already, so all are refused here
        return None
    tell_rank(launch.channel, group.rank)
    return group


def meet_in_store(store: Store, rank: int, size: int, timeout: timedelta) -> Group:
    """Join the other ranks: rank 0 starts a coordinator and tells them through the store where it is."""
    seconds = timeout.total_seconds()
    if size == 1:
        return alone(seconds)
    if rank == 0:
        token = make_token()
        where = _listening_host(store)
        terms = Terms.exactly(size, token[:16])
        coordinator = Coordinator(where, terms=terms, credentials=Credentials(token.encode()))
        hosts = (where,) if is_loopback(where) else own_hosts(_store_host(store))
        addresses = tuple(Address(host=host, port=coordinator.address.port) for host in hosts)
        meeting = _Meeting(addresses, token, token[:16])
        try:
            store.set(_KEY, msgspec.json.encode(meeting).decode())
            group = join_group(_join(meeting, rank, size, timeout))
        except BaseException:
            coordinator.close()
            raise
        group.on_close(_close_later(coordinator, seconds))
        return group
    store.set_timeout(timeout)
    meeting = msgspec.json.decode(store.get(_KEY), type=_Meeting)
    return join_group(_join(meeting, rank, size, timeout))


def _join(meeting: _Meeting, rank: int, size: int, timeout: timedelta) -> Join:
    join = Join(
        coordinator=meeting.addresses,
        rank=rank,
        size=size,
        job=meeting.job,
        hosted_by=0,
        timeout_s=timeout.total_seconds(),
        credentials=Credentials(meeting.token.encode()),
    )
    return _patient(join, timeout)


def _patient(join: Join, timeout: timedelta) -> Join:
    """Return a join that, as users of torch expect, gives no rank up before the timeout."""
    return replace(join, stall_s=max(0.1, timeout.total_seconds()))


def _store_host(store: Store) -> str:
    """Return the host of the store, as this rank reaches it; loopback if it has none."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", LOOPBACK)


def _listening_host(store: Store) -> str:
    """Return where the coordinator listens: on loopback if the store is there, otherwise on all interfaces."""
    host = _store_host(store)
    if host == "localhost" or is_loopback(host):
        return LOOPBACK
    return "::" if ":" in host else "0.0.0.0"  # noqa: S104 - ranks come from other machines


def _close_later(coordinator: Coordinator, timeout_s: float) -> Callable[[], None]:
    """Return a function that closes the coordinator when all ranks have left, and does not wait for them.

    When the process ends, it must wait. If this rank has failed, it waits only until the others have been told.
    """

    def close() -> None:
        has_failed = sys.exception() is not None or hasattr(sys, "last_value")
        deadline = Deadline.after(_FAREWELL_S if has_failed else timeout_s)
        if threading.main_thread().is_alive():
            threading.Thread(target=coordinator.close_when_left, args=(deadline,), name="phalanx-farewell").start()
        else:  # no thread can be started any more
            coordinator.close_when_left(deadline)

    return close

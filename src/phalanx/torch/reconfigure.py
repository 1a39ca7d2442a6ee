"""Groups whose members change while their processes go on: each membership has a uuid of its own."""

import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import msgspec

from phalanx.coordinator import Coordinator, Terms
from phalanx.errors import ConfigError, PhalanxError
from phalanx.group import Group, Join, alone
from phalanx.group import connect as join_group
from phalanx.launch.connect import is_elsewhere
from phalanx.launch.env import LOOPBACK
from phalanx.transport import Credentials, Deadline, make_token, own_hosts
from phalanx.wire import Address

_NAP_S = 0.05


class Handle(msgspec.Struct, frozen=True):
    """Where a process starts the coordinator if it becomes rank 0 of a group, and the token that lets members in."""

    addresses: tuple[Address, ...]
    token: str

    @classmethod
    def reserve(cls) -> "Handle":
        """Return a handle of this process, with a port that is free now."""
        with socket.create_server(("", 0)) as probe:
            port = probe.getsockname()[1]
        return cls(tuple(Address(host=host, port=port) for host in own_hosts(LOOPBACK)), make_token())

    def encode(self) -> str:
        """Return the handle as words."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, words: str) -> "Handle":
        """Return the handle in these words."""
        try:
            return msgspec.json.decode(words, type=cls)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{words[:40]!r} is no handle of the phalanx backend: {error}") from None

    def meet(self, members: Sequence["Handle"], uuid: str, timeout: timedelta) -> Group:
        """Join the group of these members, of which this process is one. Rank 0 runs the coordinator."""
        if self not in members:
            raise ConfigError("this process is not among the handles: only members of the new group call reconfigure")
        rank, size, seconds = members.index(self), len(members), timeout.total_seconds()
        if size == 1:
            return alone(seconds)
        first = members[0]
        credentials = Credentials(first.token.encode())
        join = Join(
            coordinator=first.addresses,
            rank=rank,
            size=size,
            job=uuid,
            hosted_by=0,
            timeout_s=seconds,
            stall_s=max(0.1, seconds),
            credentials=credentials,
        )
        if rank:
            return _seek(join)
        where = "0.0.0.0"  # noqa: S104 - members may be on other machines; nobody gets in without the token
        terms = Terms.exactly(size, uuid)
        coordinator = Coordinator(where, first.addresses[0].port, terms=terms, credentials=credentials)
        try:
            group = join_group(replace(join, coordinator=(Address(host=LOOPBACK, port=coordinator.address.port),)))
        except BaseException:
            coordinator.close()
            raise
        group.on_close(coordinator.close)
        return group


def _seek(join: Join) -> Group:
    """Join as soon as rank 0 has begun this membership; until then an earlier one may answer."""
    deadline = Deadline.after(join.timeout_s)
    while True:
        try:
            return join_group(replace(join, timeout_s=deadline.remaining_s()))
        except PhalanxError as error:
            if not is_elsewhere(error) or deadline.remaining_s() <= _NAP_S:
                raise
            time.sleep(_NAP_S)

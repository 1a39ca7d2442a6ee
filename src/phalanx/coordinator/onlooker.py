"""Asking a coordinator about its run, without being a worker."""

import select
from contextlib import closing
from typing import TypeVar

from phalanx.coordinator.connection import Connection
from phalanx.errors import ConnectError, DeadlineExceeded, PhalanxError
from phalanx.transport import Credentials, Deadline, call, format_address
from phalanx.wire import Address, AskStacks, Describe, Described, Look, Purpose, Stacks, Status, encode

_LIMIT_BYTES = 1 << 24
Answer = TypeVar("Answer", Status, Described, Stacks)


def look(address: Address, deadline: Deadline, credentials: Credentials) -> Status:
    """Return what the coordinator at ``address`` says about its run and all its workers."""
    return _ask(address, deadline, credentials, Look(), Status)


def ask_about(
    address: Address, deadline: Deadline, credentials: Credentials, offers: bytes | None = None
) -> bytes | None:
    """Return the facts of the run: the first ones that anybody has offered. If these are the first, they are."""
    return _ask(address, deadline, credentials, Describe(offers), Described).facts


def ask_stacks(address: Address, deadline: Deadline, credentials: Credentials, rank: int) -> str:
    """Return the Python stacks of a rank. If its process is stopped, nobody answers: that is DeadlineExceeded."""
    return _ask(address, deadline, credentials, AskStacks(rank), Stacks).words


def _ask(
    address: Address,
    deadline: Deadline,
    credentials: Credentials,
    question: Look | Describe | AskStacks,
    wanted: type[Answer],
) -> Answer:
    whom = f"the coordinator at {format_address(address)}"
    connected = call([address], deadline, credentials, Purpose.COORDINATOR, whom="the coordinator")
    with closing(Connection(connected, whom, _LIMIT_BYTES, deadline.seconds)) as connection:
        connection.send_nowait(encode(question))
        poll = select.poll()
        while not deadline.has_passed:
            poll.register(connection.socket, select.POLLIN | (select.POLLOUT if connection.is_behind else 0))
            if not connection.has_more and not poll.poll(deadline.remaining_s() * 1000):
                break
            try:
                connection.send_nowait()
                messages = connection.read_nowait()
            except (OSError, PhalanxError) as error:
                raise ConnectError(f"{whom} did not answer: {error}") from error
            for message in messages:
                if isinstance(message, wanted):
                    return message
    raise DeadlineExceeded(f"{whom} said nothing for {deadline.seconds:g} s: is it stopped?")

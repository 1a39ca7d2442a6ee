"""Asking a coordinator for the state of its run, without being a worker."""

import select
from contextlib import closing

from phalanx.coordinator.connection import Connection
from phalanx.errors import ConnectError, DeadlineExceeded, PhalanxError
from phalanx.transport import Credentials, Deadline, call, format_address
from phalanx.wire import Address, Look, Purpose, Status, encode

_LIMIT_BYTES = 1 << 24


def look(address: Address, deadline: Deadline, credentials: Credentials) -> Status:
    """Return what the coordinator at ``address`` says about its run and all its workers."""
    whom = f"the coordinator at {format_address(address)}"
    connected = call([address], deadline, credentials, Purpose.COORDINATOR, whom="the coordinator")
    with closing(Connection(connected, whom, _LIMIT_BYTES, deadline.seconds)) as connection:
        connection.send_nowait(encode(Look()))
        poll = select.poll()
        poll.register(connection.socket, select.POLLIN)
        while connection.has_more or poll.poll(deadline.remaining_s() * 1000):
            try:
                messages = connection.read_nowait()
            except (OSError, PhalanxError) as error:
                raise ConnectError(f"{whom} did not tell its status: {error}") from error
            for message in messages:
                if isinstance(message, Status):
                    return message
    raise DeadlineExceeded(f"{whom} said nothing for {deadline.seconds:g} s: is it stopped?")

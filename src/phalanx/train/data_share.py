"""Copying the data of a run to machines that lack it."""

import contextlib
import os
import selectors
import shutil
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from phalanx.buffers import slices
from phalanx.errors import ConfigError, ConnectError
from phalanx.train.data import Corpus
from phalanx.train.description import DataFacts
from phalanx.transport import Acceptor, Credentials, Deadline, call, close_in_children, format_address
from phalanx.wire import Address, Purpose

_CHUNK_BYTES = 1 << 20
_SILENCE_S = 30.0  # how long the other side may neither send nor take anything
_MOST_AT_ONCE = 8
_LOOK_S = 1.0
_CALL_S = 20.0


class DataShare:
    """Sends a text to everybody who knows the token, in threads of its own, until it is closed."""

    def __init__(self, host: str, corpus: Corpus, credentials: Credentials) -> None:
        self._bytes = corpus.tokens.view(np.uint8)
        self._acceptor = Acceptor(host, 0, credentials, Purpose.DATA)
        self.address: Address = self._acceptor.address
        self._room = threading.Semaphore(_MOST_AT_ONCE)
        self._stop_read, self._stop_write = map(close_in_children, socket.socketpair())
        self._senders: list[threading.Thread] = []
        self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="phalanx-data", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop. Closing twice is harmless."""
        if self._is_closing:
            return
        self._is_closing = True
        self._stop_write.send(b"!")
        for thread in (self._thread, *self._senders):
            thread.join()
        self._acceptor.close()
        self._stop_read.close()
        self._stop_write.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._acceptor, selectors.EVENT_READ)
            selector.register(self._stop_read, selectors.EVENT_READ)
            while not self._is_closing:
                selector.select(_LOOK_S)
                for arrival in self._acceptor.arrivals():
                    self._send_to(arrival.socket)

    def _send_to(self, connected: socket.socket) -> None:
        self._senders = [each for each in self._senders if each.is_alive()]
        if not self._room.acquire(blocking=False):
            connected.close()  # it may come again
            return
        sender = threading.Thread(target=self._send, args=[connected], name="phalanx-data-sender", daemon=True)
        self._senders.append(sender)
        sender.start()

    def _send(self, connected: socket.socket) -> None:
        try:
            with connected, contextlib.suppress(OSError):  # who does not take it all will notice
                connected.settimeout(_SILENCE_S)
                for chunk in slices(slice(0, len(self._bytes)), _CHUNK_BYTES):
                    if self._is_closing:
                        return
                    connected.sendall(self._bytes[chunk].tobytes())
        finally:
            self._room.release()


def fetch(addresses: Sequence[Address], facts: DataFacts, credentials: Credentials, folder: Path) -> Path:
    """Copy the data that ``facts`` describe into ``folder``, and return its file, unless it is there already.

    No more bytes than described are taken. The caller compares the digest.
    """
    file = folder / f"{facts.digest[:16]}{'.bin' if facts.kind == 'uint16' else '.txt'}"
    if file.exists():
        return file
    if not addresses:
        raise ConfigError("no machine of this run offers its data: copy it here yourself, and pass --data PATH")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(folder).free) < facts.size:
            words = f"the data has {facts.size:,} bytes, and {folder} has room for {free:,}"
            raise ConfigError(f"{words}: free some space, or copy it elsewhere and pass --data PATH")
        beside = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            _copy(addresses, facts.size, credentials, beside)
            beside.replace(file)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}; fix that, then try again") from error
    return file


def _copy(addresses: Sequence[Address], size: int, credentials: Credentials, file: Path) -> None:
    whom = f"the machine at {format_address(addresses[0])}"
    with call(addresses, Deadline.after(_CALL_S), credentials, Purpose.DATA, whom=whom) as connected:
        connected.settimeout(_SILENCE_S)
        rest = size
        with file.open("xb") as copy:
            while rest:
                rest -= copy.write(_take(connected, min(rest, _CHUNK_BYTES), whom, size - rest))


def _take(connected: socket.socket, most: int, whom: str, taken: int) -> bytes:
    try:
        data = connected.recv(most)
    except OSError as error:
        raise ConnectError(f"{whom} stopped sending the data after {taken:,} bytes: {error}; try again") from error
    if not data:
        raise ConnectError(f"{whom} hung up after {taken:,} bytes of the data; try again")
    return data

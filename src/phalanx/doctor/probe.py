"""Measures the way from one doctor to another.

The doctor that connects sends chunks: their length as 4 bytes, then so many bytes. The other one answers each chunk
with a byte when it has read all of it.
"""

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence
from statistics import median
from typing import Self

from phalanx.doctor.facts import MeasuredWay
from phalanx.errors import PhalanxError
from phalanx.transport import Acceptor, Credentials, Deadline, call
from phalanx.wire import Address, Purpose

CONNECT_S = 4.0
_SILENT_S = 30.0  # of a slow line: a chunk may take long
_ROUND_TRIPS = 20
_CHUNK_BYTES = 1 << 18
_MOST_BYTES = 1 << 29
_FLOOD_S = 0.4
_LENGTH = struct.Struct("<I")


class Answerer:
    """Answers chunks on all connections that come to ``acceptor``, in threads of its own, until it is closed."""

    def __init__(self, acceptor: Acceptor) -> None:
        self._acceptor = acceptor
        self._wakes, self._wake = socket.socketpair()
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._thread = threading.Thread(target=self._accept, name="phalanx-doctor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hang up on everybody."""
        self._wake.close()
        self._thread.join()
        with self._lock:
            answering = dict(self._connections)
            for connected in answering:
                with contextlib.suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)
        for thread in answering.values():
            thread.join()
        self._acceptor.close()
        self._wakes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._acceptor, selectors.EVENT_READ)
            selector.register(self._wakes, selectors.EVENT_READ)
            while True:
                due = self._acceptor.next_due
                ready = selector.select(None if due is None else max(0.0, due - time.monotonic()))
                if any(key.fileobj is self._wakes for key, _ in ready):
                    return
                for arrival in self._acceptor.arrivals():
                    thread = threading.Thread(
                        target=self._answer,
                        args=(arrival.socket,),
                        name=f"phalanx-doctor-{arrival.origin}",
                        daemon=True,
                    )
                    with self._lock:
                        self._connections[arrival.socket] = thread
                    thread.start()

    def _answer(self, connected: socket.socket) -> None:
        connected.settimeout(_SILENT_S)
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        with contextlib.suppress(OSError):  # it hung up, or says nothing
            while True:
                _fill(connected, buffer[: _LENGTH.size])
                (left,) = _LENGTH.unpack(buffer[: _LENGTH.size])
                while left:
                    taken = min(left, _CHUNK_BYTES)
                    _fill(connected, buffer[:taken])
                    left -= taken
                connected.sendall(b"k")
        with self._lock:
            del self._connections[connected]
            connected.close()


def measure_way(addresses: Sequence[Address], credentials: Credentials, whom: str) -> MeasuredWay:
    """Connect to another doctor as a worker would, and return how fast that connection is."""
    try:
        connected = call(addresses, Deadline.after(CONNECT_S), credentials, Purpose.PROBE, whom=whom)
    except PhalanxError as error:
        return MeasuredWay(fault=first_sentence(error))
    with connected:
        connected.settimeout(_SILENT_S)
        try:
            trips = [_send(connected, 1) for _ in range(_ROUND_TRIPS)]
            return MeasuredWay(bits_s=_flood(connected), round_trip_s=median(trips))
        except OSError as error:
            return MeasuredWay(fault=f"the connection broke while it was measured: {error.strerror or error}")


def first_sentence(error: PhalanxError) -> str:
    """Return what happened, without the question that messages for programs end with."""
    return str(error).partition(". Is it")[0][:1000]


def _send(connected: socket.socket, size_bytes: int) -> float:
    """Return how long a chunk and its answer take."""
    began = time.perf_counter()
    connected.sendall(_LENGTH.pack(size_bytes) + bytes(size_bytes))
    _fill(connected, memoryview(bytearray(1)))
    return time.perf_counter() - began


def _flood(connected: socket.socket) -> float:
    """Return how many bits per second arrive while as many are sent as there is room for."""
    chunk = _LENGTH.pack(_CHUNK_BYTES) + bytes(_CHUNK_BYTES)
    began, sent = time.perf_counter(), 0
    while time.perf_counter() - began < _FLOOD_S and sent * _CHUNK_BYTES < _MOST_BYTES:
        connected.sendall(chunk)
        sent += 1
    _fill(connected, memoryview(bytearray(sent)))
    return 8 * sent * _CHUNK_BYTES / (time.perf_counter() - began)


def _fill(connected: socket.socket, into: memoryview) -> None:
    while into:
        count = connected.recv_into(into)
        if not count:
            raise ConnectionResetError(0, "it hung up")
        into = into[count:]

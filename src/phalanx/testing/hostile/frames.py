"""Bytes that are no frame, generated from valid frames, and a link that sends them."""

import random
from collections.abc import Callable
from zlib import crc32

import msgspec

from phalanx.buffers import DType
from phalanx.transport import Link
from phalanx.wire import HEADER_BYTES, MAGIC, VERSION, Collective, Header, Kind, Signature, Tag

_CRC_AT = HEADER_BYTES - 4
_SEED = 11
_LENGTH_AT = 32
_CODES = {"version": 4, "kind": 5, "collective": 16, "element type": 17, "reduction": 18, "reserved": 19, "padding": 44}


def hostile_headers(header: bytes) -> dict[str, bytes]:
    """Return, by what is wrong with them, bytes as long as ``header``, a valid one, that are no header.

    Where a field is wrong the checksum is right, so that a reader gets as far as the field.
    """
    noise = random.Random(_SEED).randbytes(HEADER_BYTES)  # noqa: S311 - to be repeated, not to be secret
    openings = {"HTTP": b"GET / HTTP/1.1\r\n", "TLS": b"\x16\x03\x01\x02\x00\x01", "ssh": b"SSH-2.0-nobody\r\n"}
    found = {"random bytes": noise, "zeros": bytes(HEADER_BYTES), "ones": b"\xff" * HEADER_BYTES}
    found |= {name: opening.ljust(HEADER_BYTES, b"\n") for name, opening in openings.items()}
    found |= {"wrong checksum": header[:_CRC_AT] + bytes([header[_CRC_AT] ^ 1]) + header[_CRC_AT + 1 :]}
    found |= {"a byte too early": header[1:] + b"\0", "a byte too late": b"\0" + header[:-1]}
    for name, at in _CODES.items():
        found[f"unknown {name}"] = repair(header[:at] + b"\xee" + header[at + 1 :])
    return found


def hostile_frames() -> dict[str, bytes]:
    """Return, by what is wrong with them, bytes that no member may send to the coordinator."""
    valid = Header(Kind.CONTROL, Tag(0, 0, 0), None, 0).pack()
    payloads = {
        "no message": b"",
        "no map": msgspec.msgpack.encode([1, 2, 3]),
        "no type": msgspec.msgpack.encode({"epoch": 1}),
        "an unknown type": msgspec.msgpack.encode({"type": "Sudo"}),
        "an unknown field": msgspec.msgpack.encode({"type": "Leave", "at": "once"}),
        "a missing field": msgspec.msgpack.encode({"type": "Holds"}),
        "a negative number": msgspec.msgpack.encode({"type": "Holds", "epoch": -1}),
        "too large a number": msgspec.msgpack.encode({"type": "Holds", "epoch": 2**63}),
        "text for a number": msgspec.msgpack.encode({"type": "Holds", "epoch": "one"}),
        "too long a text": msgspec.msgpack.encode({"type": "Refused", "reason": "x" * 5000}),
        "text that is not UTF-8": b"\x82\xa4type\xa7Refused\xa6reason\xa2\xff\xfe",
        "a length that never comes": b"\x82\xa4type\xa7Refused\xa6reason\xdb\xff\xff\xff\xff",
        "a deep nest": b"\x91" * 5000,
        "more after the end": msgspec.msgpack.encode({"type": "Leave"}) + b"\0",
    }
    framed = {name: _frame(payload) for name, payload in payloads.items()}
    endless = valid[:_LENGTH_AT] + (2**63).to_bytes(8, "little") + valid[_LENGTH_AT + 8 :]
    framed["a length over the limit"] = repair(endless)
    leave = msgspec.msgpack.encode({"type": "Leave"})
    signature = Signature(Collective.BARRIER, DType.U8, 0)
    framed["a message in a data frame"] = Header(Kind.DATA, Tag(0, 0, 0), signature, len(leave)).pack() + leave
    return framed | {f"a header: {name}": data for name, data in hostile_headers(valid).items()}


def repair(header: bytes) -> bytes:
    """Return a header with the checksum that fits it."""
    return header[:_CRC_AT] + crc32(header[:_CRC_AT]).to_bytes(4, "little")


class HostileLink:
    """A link that sends ``garble(header)`` instead of the header with this ``number``, counted from 0."""

    def __init__(self, link: Link, garble: Callable[[bytes], bytes], number: int = 0) -> None:
        self.peer = link.peer
        self._link = link
        self._garble = garble
        self._number = number
        self._left = memoryview(b"")

    def send_nowait(self, data: memoryview) -> int:
        """Hand over as many bytes as there is room for, and return how many."""
        if bytes(data[:5]) == MAGIC + bytes([VERSION]) and not self._left:
            self._number -= 1
            if self._number == -1:
                self._left = memoryview(self._garble(bytes(data[:HEADER_BYTES])))
        if not self._left:
            return self._link.send_nowait(data)
        sent = self._link.send_nowait(self._left)
        self._left = self._left[sent:]
        return sent

    def receive_nowait(self, into: memoryview) -> int:
        """Fill ``into`` with what has arrived, and return how many bytes."""
        return self._link.receive_nowait(into)

    def wake_at(self, size_bytes: int) -> None:
        """Let waits go on until so many bytes have arrived."""
        self._link.wake_at(size_bytes)

    def fileno(self) -> int:
        """The descriptor of the link inside."""
        return self._link.fileno()

    def check(self) -> None:
        """Raise ``PeerLost`` if the peer has been out of reach for too long."""
        self._link.check()

    def close(self) -> None:
        """Hang up."""
        self._link.close()


def _frame(payload: bytes) -> bytes:
    return Header(Kind.CONTROL, Tag(0, 0, 0), None, len(payload)).pack() + payload

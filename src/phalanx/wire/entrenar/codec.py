"""Messages of entrenar to bytes, and what is needed to read them again.

A frame is a length (u32, big-endian), a tag (u8) and the fields of a message, little-endian and without padding.
"""

import struct
from dataclasses import astuple
from typing import Any, NamedTuple, get_args, get_type_hints

from phalanx.errors import ConfigError, PhalanxError
from phalanx.wire.entrenar.message import (
    ELEMENTS,
    LONGEST_FRAME_BYTES,
    TEXT,
    Block,
    Counted,
    Gradient,
    JoinRequest,
    Message,
)

STRANGER_BYTES = LONGEST_FRAME_BYTES
"""The longest frame to take from a peer that has not joined. Of long texts a reader keeps only the beginning."""

_SHORTEST_JOIN_BYTES = 13
SIZE = struct.Struct("<I")

Code = str | Counted
"""How a field is written: a number by its letter in a struct, or counted items."""


class NumberFields(NamedTuple):
    """Numbers that are read at once; the last is the count of ``counted``, unless that is None."""

    numbers: struct.Struct
    counted: Counted | None


def is_opening(first: bytes) -> bool:
    """Whether the first 5 bytes of a connection can be those of a JoinRequest."""
    length, tag = struct.unpack(">IB", first)
    return _SHORTEST_JOIN_BYTES <= length <= STRANGER_BYTES and KINDS.get(tag) is JoinRequest


def opening(message: Message) -> bytes:
    """What to send before the gradients, or ConfigError for a message that this wire cannot carry."""
    before, after = _pack(message)
    length = len(before) + data_bytes(message) + len(after)
    if length >= 2**32:
        raise ConfigError(f"{message}: a frame has less than {2**32} bytes, not {length}; send fewer elements at once")
    return length.to_bytes(4, "big") + before


def closing(message: Message) -> bytes:
    """What to send after the gradients: nothing, for most messages."""
    return _pack(message)[1]


def encode(message: Message, gradients: bytes | bytearray | memoryview = b"") -> bytes:
    """The whole frame, into which the bytes of ``gradients`` are copied."""
    size_bytes = memoryview(gradients).nbytes
    if size_bytes != data_bytes(message):
        raise ConfigError(f"{message}: its gradients have {data_bytes(message)} bytes, not {size_bytes}")
    return b"".join((opening(message), gradients, closing(message)))


def data_bytes(message: Message) -> int:
    """The size of the gradients in this message."""
    return ELEMENTS.item_bytes * message.elements if isinstance(message, Gradient) else 0


def check_count(counted: Counted, count: int, refuse: type[PhalanxError]) -> None:
    """Raise ``refuse`` if there are more items than anyone has reason to send."""
    if count > counted.most:
        raise refuse(f"a message of entrenar has at most {counted.most} {counted.name} in a field, not {count}")


def check_sum(message: Message, refuse: type[PhalanxError]) -> None:
    """Raise ``refuse`` unless the components of a block make up its gradients."""
    if isinstance(message, Block) and (total := sum(message.component_sizes)) != message.elements:
        raise refuse(f"{message}: the component sizes add up to {total} and must add up to {message.elements}")


def _pack(message: Message) -> tuple[bytes, bytes]:
    check_sum(message, ConfigError)
    before, after = bytearray([_TAGS[type(message)]]), bytearray()
    part = before
    try:
        for code, value in zip(_CODES[type(message)], astuple(message), strict=True):
            part += _pack_field(code, value)
            if code is ELEMENTS:
                part = after
    except (struct.error, OverflowError, UnicodeEncodeError) as error:
        raise ConfigError(f"{message} does not fit the wire of entrenar: {error}") from None
    return bytes(before), bytes(after)


def _pack_field(code: Code, value: Any) -> bytes:  # a value of the type that stands beside the code in its message
    if isinstance(code, str):
        return struct.pack("<" + code, value)
    if code is ELEMENTS:
        return struct.pack("<" + code.count, value)
    items = value.encode() if code is TEXT else b"".join(map(SIZE.pack, value))
    count = len(items) // code.item_bytes
    check_count(code, count, ConfigError)
    return struct.pack("<" + code.count, count) + items


def _codes(kind: type[Message]) -> tuple[Code, ...]:
    return tuple(hint.__metadata__[0] for hint in get_type_hints(kind, include_extras=True).values())


def _runs(codes: tuple[Code, ...]) -> tuple[NumberFields, ...]:
    runs, letters = [], "<"
    for code in codes:
        if isinstance(code, str):
            letters += code
        else:
            runs.append(NumberFields(struct.Struct(letters + code.count), code))
            letters = "<"
    return (*runs, NumberFields(struct.Struct(letters), None))


KINDS: dict[int, type[Message]] = dict(enumerate(get_args(Message), start=1))
_TAGS = {kind: tag for tag, kind in KINDS.items()}
_CODES = {kind: _codes(kind) for kind in _TAGS}
LAYOUTS = {kind: _runs(codes) for kind, codes in _CODES.items()}

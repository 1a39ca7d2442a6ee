"""Encoding and decoding of messages."""

import re
from typing import Generic, TypeVar

import msgspec

from phalanx.errors import BadFrame
from phalanx.wire.frame import Header, Kind, Tag
from phalanx.wire.text import printable

Message = TypeVar("Message")

_SEVERAL_LINES = ("words", "reason")  # what people read; all other texts are names


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that messages contain. Its texts reach logs and terminals, so they have no control characters."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            text = getattr(self, field)
            if isinstance(text, str) and not text.isprintable():
                msgspec.structs.force_setattr(self, field, printable(text, keep_lines=field in _SEVERAL_LINES))


class Tagged(Value, frozen=True, tag=True):
    """A message. Its name on the wire tells it from the other messages of its family."""


class Codec(Generic[Message]):
    """Encodes and decodes one family of messages; ``family`` is their union."""

    def __init__(self, family: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(family)

    def encode(self, message: Message) -> bytes:
        """Return the frame of a message, header and payload; BadFrame if its receiver would refuse it."""
        payload = msgspec.msgpack.encode(message)
        self.decode(payload)
        return Header(Kind.CONTROL, Tag(epoch=0, sequence=0, round=0), None, len(payload)).pack() + payload

    def decode(self, payload: bytes) -> Message:
        """Return the message in the payload of a control frame. Raises BadFrame."""
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrame(f"this is no control message: {_without_quotes(str(error))}") from None


def _without_quotes(words: str) -> str:
    """Remove the peer's own text, which may be long or contain control characters for a terminal."""
    return re.sub(r"(?s)(unknown field|Invalid value|Invalid enum value) .*", r"\1", words)

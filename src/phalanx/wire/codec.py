"""Messages to frames and back, for any family of messages."""

import re
from typing import Generic, TypeVar

import msgspec

from phalanx.errors import BadFrame
from phalanx.wire.frame import Header, Kind, Tag

Message = TypeVar("Message")


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of messages."""


class Tagged(Value, frozen=True, tag=True):
    """A message, told apart from its family by its name."""


class Codec(Generic[Message]):
    """Encodes and decodes one family of messages; ``family`` is their union."""

    def __init__(self, family: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(family)

    def encode(self, message: Message) -> bytes:
        """The whole frame, header and payload; BadFrame for a message that its receiver would refuse."""
        payload = msgspec.msgpack.encode(message)
        self.decode(payload)
        return Header(Kind.CONTROL, Tag(epoch=0, sequence=0, round=0), None, len(payload)).pack() + payload

    def decode(self, payload: bytes) -> Message:
        """The message that the payload of a control frame stands for, or BadFrame."""
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrame(f"this is no control message: {_without_quotes(str(error))}") from None


def _without_quotes(words: str) -> str:
    """Leave out what the peer wrote: it may be long, or made to fool a terminal."""
    return re.sub(r"(?s)(unknown field|Invalid value|Invalid enum value) .*", r"\1", words)

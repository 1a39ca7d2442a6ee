"""What became of one rank of a test world, in a form that crosses from one process to another."""

import time
import traceback
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from phalanx import errors
from phalanx.errors import PhalanxError


class Outcome(msgspec.Struct, frozen=True):
    """A rank's result, or its error and traceback, and when it came (``time.monotonic``)."""

    rank: int
    at: float
    result: Any = None  # Any: whatever the function returned
    kind: str = ""
    words: str = ""
    peer: int | None = None
    traceback: str = ""

    @property
    def error(self) -> Exception | None:
        """The error as an exception, of its own type if that is one of Phalanx's."""
        if not self.kind:
            return None
        found = getattr(errors, self.kind, None)
        if isinstance(found, type) and issubclass(found, PhalanxError):
            error: Exception = found(self.words)
            error.peer = self.peer  # type: ignore[attr-defined]  # errors without a peer carry None
        else:
            error = RuntimeError(f"{self.kind}: {self.words}")
        error.add_note(f"on rank {self.rank}:\n{self.traceback}")
        return error

    def unwrap(self) -> Any:  # Any: whatever the function returned
        """Return the result, or raise the error."""
        if (error := self.error) is not None:
            raise error
        return self.result


def observe(rank: int, function: Callable[[], object]) -> Outcome:
    """Run ``function`` and return its result or error."""
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - it is raised again where the test is
        return Outcome(
            rank=rank,
            at=time.monotonic(),
            kind=type(error).__name__,
            words=str(error),
            peer=getattr(error, "peer", None),
            traceback=traceback.format_exc(),
        )
    return Outcome(rank=rank, at=time.monotonic(), result=result)


def pack(outcome: Outcome) -> bytes:
    """Return the outcome as bytes; results may hold numbers, text, lists, dictionaries and numpy arrays."""
    return msgspec.msgpack.encode(outcome, enc_hook=_pack_array)


def unpack(data: bytes) -> Outcome:
    """Return the outcome that ``pack`` turned into bytes."""
    return msgspec.msgpack.decode(data, type=Outcome, ext_hook=_unpack_array)


def _pack_array(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"a rank in a process of its own cannot return a {type(value).__name__}")
    data = msgspec.msgpack.encode((value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes()))
    return msgspec.msgpack.Ext(1, data)


def _unpack_array(code: int, data: memoryview) -> object:
    assert code == 1, code
    kind, shape, content = msgspec.msgpack.decode(data)
    return np.frombuffer(content, kind).reshape(shape).copy()

"""A user's own small state as bytes: plain values and arrays."""

from collections.abc import Mapping
from typing import Any

from phalanx.errors import ConfigError
from phalanx.wire import decode_value, encode_value


def encode_extra(extra: Mapping[str, Any]) -> bytes:  # Any: checked here
    """Return a user's state as bytes. A value that cannot be kept is a ConfigError that names its key."""
    if type(extra) is not dict:
        raise ConfigError(f"engine.extra is of type {type(extra).__name__}, and must be a dict")
    return encode_value(extra, "engine.extra", has_dataclasses=False)  # who resumes need not have the classes


def decode_extra(data: bytes) -> dict[str, Any]:  # Any: as above
    """Return the state that ``encode_extra`` was given. Tensors are on the CPU. Other bytes are a ConfigError."""
    try:
        extra = decode_value(data)
    except ValueError as error:
        raise ConfigError(f"this is no state that engine.extra had: {error}") from error
    if type(extra) is not dict:
        raise ConfigError(f"this is no state that engine.extra had: it is of type {type(extra).__name__}")
    return extra

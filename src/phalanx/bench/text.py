"""Reading what a person asks to have measured, and writing figures for people."""

import math
from enum import Enum
from typing import TypeVar

from phalanx.errors import ConfigError

ITEM_BYTES = 4  # all systems add up f32

_UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
_System = TypeVar("_System", bound=Enum)


def parse_sizes(text: str) -> list[int]:
    """Return the bytes that ``4KiB,64MiB`` names."""
    return [_parse_size(word) for word in _words(text)]


def parse_counts(text: str, least: int = 2) -> list[int]:
    """Return the numbers of workers that ``2,4`` names."""
    words = _words(text)
    for word in words:
        if not (word.isdecimal() and int(word) >= least):
            raise ConfigError(f"{word!r} is not a number of workers: give {least} or more, as in 2,4")
    return [int(word) for word in words]


def parse_systems(kind: type[_System], text: str) -> list[_System]:
    """Return the systems of ``kind`` that ``arena,gloo`` names, in that order."""
    known = {system.value: system for system in kind}
    words = _words(text)
    for word in words:
        if word not in known:
            raise ConfigError(f"there is no system {word!r}: choose from {', '.join(known)}")
    return [known[word] for word in words]


def format_size(size_bytes: int) -> str:
    """Return ``64 MiB`` or the like, in the largest unit that leaves no fraction."""
    unit = next(unit for unit, factor in _UNITS.items() if size_bytes % factor == 0)
    return f"{size_bytes // _UNITS[unit]} {unit}"


def format_time(seconds: float) -> str:
    """Return ``12.3 µs``, ``4.56 ms`` or ``1.23 s``."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{format_number(seconds * factor)} {unit}"
    return f"{format_number(seconds * 1e6)} µs"


def format_number(value: float) -> str:
    """Return a number with three significant digits."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


def _words(text: str) -> list[str]:
    """Return the different words of a list with commas."""
    words = list(dict.fromkeys(word.strip() for word in text.split(",")))
    if "" in words:
        raise ConfigError(f"{text!r} has an empty place: write the words with one comma between them")
    return words


def _parse_size(word: str) -> int:
    number = word.rstrip("BKMGi")
    factor = _UNITS.get(word[len(number) :] or "B")
    if factor is None or not number.isdecimal():
        raise ConfigError(f"{word!r} is not a size: write a number and B, KiB, MiB or GiB, as in 4KiB")
    size = int(number) * factor
    if size == 0 or size % ITEM_BYTES:
        raise ConfigError(f"{word!r} is not a whole number of f32 elements: give a multiple of {ITEM_BYTES} bytes")
    return size

"""The header of every frame: 64 bytes that say what follows. docs/wire-format.md specifies each of them."""

import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from zlib import crc32

from phalanx.buffers import DType, ReduceOp
from phalanx.errors import BadFrame

MAGIC = b"PHLX"
VERSION = 1
HEADER_BYTES = 64
NO_ROOT = 0xFFFF

OPENING_BYTES = 5
"""Magic and version, by which another protocol is recognised."""

_SIGNATURE_LAYOUT = "BBBBHHQ"
_SIGNATURE = struct.Struct("<" + _SIGNATURE_LAYOUT)
_CHECKED = struct.Struct(f"<4sBBHQ{_SIGNATURE_LAYOUT}QI16s")
_RESERVED = bytes(16)
_NO_SIGNATURE = (0, 0, 0, 0, 0, 0, 0)

_STRANGERS = {
    "HTTP": (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ", b"HTTP"),
    "TLS": (b"\x16\x03", b"\x15\x03"),
    "ssh": (b"SSH-",),
}


class Kind(IntEnum):
    """What follows the header."""

    DATA = 1
    """Part of a collective."""
    CONTROL = 2
    """A control message."""


class Collective(IntEnum):
    """What the ranks of a group do together."""

    ALL_REDUCE = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    BROADCAST = 4
    REDUCE = 5
    GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8
    SEND = 9
    BARRIER = 10
    ALLOCATE = 11
    """Memory that the ranks of a host share."""
    FOLD_LANES = 12
    """A sum of lanes: every rank contributes its pieces, and all ranks get the sum."""
    SCATTER_LANES = 13
    """A sum of lanes of which each block goes only to the rank that owns it."""
    BROADCAST_BLOCKS = 14
    """An all-gather in place: each block is copied from the rank that owns it."""


_TO_ROOT = frozenset({Collective.REDUCE, Collective.GATHER})


@dataclass(frozen=True, slots=True)
class Signature:
    """What a collective is. All ranks of a call must have the same signature.

    ``count`` is the number of elements of the whole buffer. ``blocks`` is a checksum of the blocks of
    the buffer and their owners, or 0. Nobody checks whether an op or a root makes sense: a receiver compares the
    signature with its own.
    """

    collective: Collective
    dtype: DType
    count: int
    op: ReduceOp | None = None
    root: int | None = None
    blocks: int = 0

    def __post_init__(self) -> None:
        assert 0 <= self.count < 2**64, self.count
        assert 0 <= self.blocks < 2**16, self.blocks
        assert self.root is None or 0 <= self.root < NO_ROOT, self.root

    def pack(self) -> bytes:
        """Return the 16 bytes of this signature."""
        return _SIGNATURE.pack(*_words(self))

    @classmethod
    def unpack(cls, buffer: bytes | memoryview) -> "Signature":
        """Return the signature in 16 bytes. Raises BadFrame."""
        if len(buffer) != _SIGNATURE.size:
            raise BadFrame(f"a signature has {_SIGNATURE.size} bytes, not {len(buffer)}")
        return _signature(_SIGNATURE.unpack(buffer))

    def __str__(self) -> str:
        if self == _BARRIER:
            return "barrier"
        op = "" if self.op is None else f"({self.op.label})"
        toward = "to" if self.collective in _TO_ROOT else "from"
        root = "" if self.root is None else f" {toward} rank {self.root}"
        blocks = f", blocks {self.blocks:04x}" if self.blocks else ""
        return f"{self.collective.name.lower()}{op}{root} of {self.count} {self.dtype.label}{blocks}"


_BARRIER = Signature(Collective.BARRIER, DType.U8, 0)


@dataclass(frozen=True, slots=True)
class Tag:
    """Which operation a frame belongs to."""

    epoch: int
    sequence: int
    round: int

    def __post_init__(self) -> None:
        assert 0 <= self.epoch < 2**32, self.epoch
        assert 0 <= self.sequence < 2**64, self.sequence
        assert 0 <= self.round < 2**16, self.round

    def __str__(self) -> str:
        return f"epoch {self.epoch}, call {self.sequence}, round {self.round}"


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a frame. ``length`` bytes of payload follow it. Only data frames have a signature."""

    kind: Kind
    tag: Tag
    signature: Signature | None
    length: int

    def __post_init__(self) -> None:
        assert (self.kind is Kind.DATA) == (self.signature is not None), self.kind
        assert 0 <= self.length < 2**64, self.length

    def pack(self) -> bytes:
        """Return the 64 bytes of this header."""
        tag = self.tag
        words = _NO_SIGNATURE if self.signature is None else _words(self.signature)
        checked = _CHECKED.pack(
            MAGIC, VERSION, self.kind, tag.round, tag.sequence, *words, self.length, tag.epoch, _RESERVED
        )
        return checked + crc32(checked).to_bytes(4, "little")

    @classmethod
    def unpack(cls, buffer: bytes | memoryview) -> "Header":
        """Return the header in 64 bytes. Raises BadFrame."""
        if len(buffer) != HEADER_BYTES:
            raise BadFrame(f"a header has {HEADER_BYTES} bytes, not {len(buffer)}")
        check_opening(buffer)
        checked, crc = buffer[:-4], int.from_bytes(buffer[-4:], "little")
        if crc != (computed := crc32(checked)):
            raise BadFrame(f"a header was damaged on the way: its checksum is {crc:08x} and should be {computed:08x}")
        _, _, kind, round_, sequence, *words, length, epoch, reserved = _CHECKED.unpack(checked)
        if reserved != _RESERVED:
            raise BadFrame(f"reserved bytes of a header must be zero, not {reserved.hex()}")
        tag = Tag(epoch, sequence, round_)
        if kind == Kind.DATA:
            return cls(Kind.DATA, tag, _signature(tuple(words)), length)
        if kind != Kind.CONTROL:
            raise BadFrame(f"a frame of kind {kind} is unknown: data is {Kind.DATA}, control is {Kind.CONTROL}")
        if any(words):
            raise BadFrame("a control frame has no signature: its 16 bytes must be zero")
        return cls(Kind.CONTROL, tag, None, length)

    def __str__(self) -> str:
        if self.signature is None:
            return f"control, {self.length} bytes"
        return f"data, {self.tag}: {self.signature}, {self.length} bytes"


def check_opening(buffer: bytes | bytearray | memoryview) -> None:
    """Raise BadFrame unless the first ``OPENING_BYTES`` are ours. The error names the other protocol if it is known."""
    magic, version = bytes(buffer[:4]), buffer[4]
    if magic != MAGIC:
        names = [name for name, openings in _STRANGERS.items() if magic.startswith(openings)]
        guess = f"this looks like {names[0]}" if names else "this is not Phalanx"
        raise BadFrame(f"a frame begins with {MAGIC.hex()}, not {magic.hex()}: {guess}; check the address and port")
    if version != VERSION:
        raise BadFrame(
            f"they speak version {version} of the Phalanx wire, we speak version {VERSION}: "
            "run the same release of phalanx on every rank"
        )


def _words(signature: Signature) -> tuple[int, ...]:
    op = 0 if signature.op is None else signature.op.code
    root = NO_ROOT if signature.root is None else signature.root
    return signature.collective, signature.dtype.code, op, 0, root, signature.blocks, signature.count


@lru_cache  # the same few signatures come again in every step
def _signature(words: tuple[int, ...]) -> Signature:
    collective, dtype, op, reserved, root, blocks, count = words
    if reserved:
        raise BadFrame(f"reserved bytes of a signature must be zero, not {reserved:#x}")
    try:
        return Signature(
            collective=Collective(collective),
            dtype=DType.from_code(dtype),
            count=count,
            op=ReduceOp.from_code(op) if op else None,
            root=None if root == NO_ROOT else root,
            blocks=blocks,
        )
    except ValueError:
        codes = f"collective {collective}, element type {dtype} and op {op}"
        raise BadFrame(f"a signature has {codes}, and not all of these codes exist") from None

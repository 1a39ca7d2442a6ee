"""What doctors know of a machine, and what they tell each other. They check what they are told."""

from typing import Annotated

import msgspec
from msgspec import Meta

from phalanx.errors import ProtocolError
from phalanx.wire import Address, Tagged, Value

_Word = Annotated[str, Meta(max_length=200)]
_Words = Annotated[str, Meta(max_length=1000)]
_Count = Annotated[int, Meta(ge=0, lt=2**62)]
_Amount = Annotated[float, Meta(ge=0)]


class TorchBuild(Value, frozen=True):
    """A build of torch: ``revision`` is that of its source, ``instructions`` those of the CPU that it uses."""

    version: _Word
    revision: _Word
    cuda: _Word
    instructions: _Word


class GpuFacts(Value, frozen=True):
    """The GPUs that torch can use. ``strangers`` are pairs of them that cannot read each other's memory."""

    names: Annotated[tuple[_Word, ...], Meta(max_length=64)] = ()
    memory_bytes: _Count = 0
    strangers: Annotated[tuple[tuple[_Count, _Count], ...], Meta(max_length=2048)] = ()
    has_mps: bool = False
    has_nvidia: bool = False
    """Whether the system has a device of NVIDIA, whatever torch can do with it."""


class VolumeFacts(Value, frozen=True):
    """A place for files. ``fault`` says why nothing can be written there, and is empty if it can be."""

    path: _Words
    kind: _Word = ""
    free_bytes: _Count = 0
    write_bytes_s: _Amount = 0.0
    sync_s: _Amount = 0.0
    """How long it takes until a short write is on the disk."""
    fault: _Words = ""


class PortCheck(Value, frozen=True):
    """Whether this machine can listen on one of its addresses and connect to itself there."""

    host: _Word
    fault: _Words = ""


class Setting(Value, frozen=True):
    """A variable of the environment."""

    name: _Word
    value: _Word


class MachineFacts(Value, frozen=True, kw_only=True):
    """One machine, as a process on it sees it."""

    name: _Word
    system: _Word
    processor: _Word
    python: _Word
    phalanx: _Word
    numpy: _Word
    wire: _Count
    torch: TorchBuild | None
    gpus: GpuFacts
    cpus: _Count
    usable_cpus: _Count
    memory_bytes: _Count
    memory_limit_bytes: _Count | None
    memory_free_bytes: _Count
    settings: Annotated[tuple[Setting, ...], Meta(max_length=32)]
    memory_sharing_fault: _Words
    shm: VolumeFacts
    open_files: _Count
    most_open_files: _Count
    ports: Annotated[tuple[PortCheck, ...], Meta(max_length=64)]
    port_range: _Word
    disk: VolumeFacts
    is_clock_synchronised: bool | None


class DoctorHello(Tagged, frozen=True):
    """The first note of a doctor. ``clock_offset_s``: how far the coordinator's clock is ahead of this machine's."""

    facts: MachineFacts
    addresses: Annotated[tuple[Address, ...], Meta(max_length=64)]
    clock_offset_s: float
    clock_error_s: _Amount


class MeasuredWay(Value, frozen=True):
    """What a doctor found when it connected to another one: a ``fault``, or how fast the connection is."""

    fault: _Words = ""
    bits_s: _Amount = 0.0
    round_trip_s: _Amount = 0.0


class PhaseReport(Tagged, frozen=True):
    """A doctor is done with a phase, in which it has measured ``way``, if it had to connect to somebody."""

    phase: _Count
    way: MeasuredWay | None


DoctorNote = DoctorHello | PhaseReport
_decoder: msgspec.msgpack.Decoder[DoctorNote] = msgspec.msgpack.Decoder(DoctorNote)


def encode_note(note: DoctorNote) -> bytes:
    """Return the bytes of a note."""
    return msgspec.msgpack.encode(note)


def decode_note(data: bytes) -> DoctorNote:
    """Return the note in ``data``. Raises ProtocolError if there is none."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(
            f"another doctor says what this release of phalanx cannot read ({error}): install the same on all machines"
        ) from None

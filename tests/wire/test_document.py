"""docs/wire-format.md says what the code does."""

import re
import struct
from pathlib import Path
from typing import get_args

import pytest

from phalanx.buffers import DType, ReduceOp
from phalanx.wire import (
    Address,
    Cause,
    Collective,
    Commit,
    Done,
    Failed,
    FrameReader,
    Header,
    Hello,
    Kind,
    Leave,
    LinkHello,
    Member,
    Message,
    Reason,
    Revoked,
    Signature,
    Standing,
    Tag,
    decode,
    encode,
    gradient,
)

DOCUMENT = Path(__file__).parents[2].joinpath("docs", "wire-format.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^###? (.+?)\n(.*?)(?=^##|\Z)", DOCUMENT, re.DOTALL | re.MULTILINE))
KEY = bytes(range(16))

DATA_FRAMES = {
    "Part of an all-reduce": (
        Header(
            Kind.DATA,
            Tag(epoch=1, sequence=17, round=2),
            Signature(Collective.ALL_REDUCE, DType.F32, 1024, op=ReduceOp.SUM),
            length=8,
        ),
        struct.pack("<2f", 1.0, -2.5),
    ),
    "Part of a broadcast": (
        Header(
            Kind.DATA,
            Tag(epoch=2**32 - 2, sequence=2**64 - 2, round=2**16 - 2),
            Signature(Collective.BROADCAST, DType.I64, 7, root=2),
            length=8,
        ),
        struct.pack("<q", -3),
    ),
    "A barrier": (
        Header(Kind.DATA, Tag(epoch=3, sequence=0, round=0), Signature(Collective.BARRIER, DType.U8, 0), length=0),
        b"",
    ),
}
CONTROL_FRAMES = {
    "A hello": Hello(
        host="anvil",
        addresses=(Address("10.0.0.7", 40001), Address("::1", 40002)),
        pid=4242,
        rank=None,
        size=4,
        job="night",
        name="anvil:4242:7f3a",
        device="cpu",
        threads=2,
        lanes=8,
        step=41,
        pending=bytes(range(8)),
        patience_s=5.0,
        stall_s=None,
        can_keep=True,
    ),
    "A step that is done": Done(epoch=2, step=41, loss=2.5, digest=bytes(range(8))),
    "A step that counts": Commit(step=41, digest=bytes(range(8))),
    "A link's hello": LinkHello(epoch=1, rank=3, key=KEY),
    "An accusation": Failed(epoch=1, cause=Cause.STALLED, rank=2, words="rank 2 is late"),
    "A revoked epoch": Revoked(epoch=1, cause=Cause.LOST, rank=2, words="rank 2 went away"),
    "A farewell": Leave(),
}


def rows(section):
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def golden(title):
    block = re.search(r"```text\n(.*?)```", SECTIONS[title], re.DOTALL)
    return bytes.fromhex(block.group(1))


def only_frame(data):
    reader = FrameReader()
    reader.feed(data)
    return reader.next_frame()


def test_every_golden_frame_is_checked_here():
    titles = set(re.findall(r"^### (.+)$", DOCUMENT.partition("## Golden frames")[2], re.MULTILINE))

    assert titles == DATA_FRAMES.keys() | CONTROL_FRAMES.keys()


@pytest.mark.parametrize("title", DATA_FRAMES)
def test_golden_data_frames_are_what_the_code_writes_and_reads(title):
    header, payload = DATA_FRAMES[title]

    data = golden(title)

    assert data == header.pack() + payload
    assert only_frame(data) == (header, payload)
    assert f"`{header}`" in SECTIONS[title]


@pytest.mark.parametrize("title", CONTROL_FRAMES)
def test_golden_control_frames_are_what_the_code_writes_and_reads(title):
    message = CONTROL_FRAMES[title]

    data = golden(title)
    header, payload = only_frame(data)

    assert data == encode(message)
    assert decode(payload) == message
    assert f"`{header}`" in SECTIONS[title]


@pytest.mark.parametrize(
    ("section", "codes"),
    [
        ("Collectives", {member.name.lower(): member.value for member in Collective}),
        ("Element types", {dtype.label: dtype.code for dtype in DType}),
        ("Ops", {op.label: op.code for op in ReduceOp}),
    ],
)
def test_tables_of_codes_are_those_of_the_code(section, codes):
    table = {row[1]: int(row[0]) for row in rows(section)}

    assert table == codes


@pytest.mark.parametrize(("section", "size"), [("Header", 64), ("Signature", 16)])
def test_tables_of_offsets_leave_no_byte_out(section, size):
    end = 0
    for offset, length, *_ in rows(section):
        assert int(offset) == end
        end += int(length)

    assert end == size


TABLES = {struct.__name__: struct for struct in (*get_args(Message), Address, Member, Standing)}
TABLES |= {f"Star: {struct.__struct_config__.tag}": struct for struct in get_args(gradient.Message)}


@pytest.mark.parametrize("title", TABLES)
def test_tables_of_messages_have_the_fields_of_the_code(title):
    fields = tuple(row[0] for row in rows(title))

    assert fields == TABLES[title].__struct_fields__


@pytest.mark.parametrize("title", TABLES)
def test_tables_of_messages_say_which_fields_have_a_default(title):
    struct_type = TABLES[title]
    with_default = [row[0] for row in rows(title) if "default" in row[2]]

    defaults = struct_type.__struct_defaults__
    assert with_default == list(struct_type.__struct_fields__[len(struct_type.__struct_fields__) - len(defaults) :])


@pytest.mark.parametrize(("name", "kinds"), [("cause", Cause), ("reason", Reason)])
def test_the_table_of_words_is_that_of_the_code(name, kinds):
    words = re.search(rf"^\| {name} \| str \| (.*) \|$", DOCUMENT, re.MULTILINE).group(1)

    assert words == ", ".join(f"`{kind.value}`" for kind in kinds)


def test_the_reasons_of_a_gradient_server_are_those_of_the_code():
    (row,) = [row for row in rows("Star: Halt") if row[0] == "reason"]

    assert re.findall(r"`(.+?)`", row[2]) == [reason.value for reason in gradient.ServerHaltReason]

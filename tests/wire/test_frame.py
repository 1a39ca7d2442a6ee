import re
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_strategies import headers, signatures

from phalanx.buffers import DType, ReduceOp
from phalanx.errors import BadFrame
from phalanx.wire import HEADER_BYTES, Collective, Header, Kind, Signature, Tag

HEADER = Header(
    Kind.DATA,
    Tag(epoch=1, sequence=17, round=2),
    Signature(Collective.ALL_REDUCE, DType.F32, 1024, op=ReduceOp.SUM),
    length=4096,
)
CONTROL = Header(Kind.CONTROL, Tag(epoch=0, sequence=0, round=0), None, length=57)


def changed(header, offset, value):
    """The header with one byte changed and a checksum that fits."""
    checked = bytearray(header.pack()[:-4])
    checked[offset] = value
    return bytes(checked) + crc32(checked).to_bytes(4, "little")


def refusal(data):
    try:
        Header.unpack(data)
    except BadFrame as error:
        return str(error)
    return ""


@settings(deadline=None)
@given(headers())
def test_a_header_comes_back_from_its_64_bytes(header):
    data = header.pack()

    assert len(data) == HEADER_BYTES
    assert Header.unpack(data) == header
    assert Header.unpack(memoryview(data)) == header


@settings(deadline=None)
@given(signatures)
def test_a_signature_comes_back_from_its_16_bytes(signature):
    data = signature.pack()

    assert len(data) == 16
    assert Signature.unpack(data) == signature
    assert Signature.unpack(memoryview(data)) == signature


@settings(deadline=None)
@given(st.integers(0, 8 * HEADER_BYTES - 1))
def test_a_header_with_any_bit_flipped_is_refused(bit):
    data = bytearray(HEADER.pack())
    data[bit // 8] ^= 1 << bit % 8

    with pytest.raises(BadFrame):
        Header.unpack(bytes(data))


@pytest.mark.parametrize("size", [0, 3, 5, 63, 65])
def test_a_header_of_another_size_is_refused(size):
    data = (HEADER.pack() + b"x")[:size]

    with pytest.raises(BadFrame, match=f"64 bytes, not {size}"):
        Header.unpack(data)


@pytest.mark.parametrize("size", [0, 15, 17])
def test_a_signature_of_another_size_is_refused(size):
    with pytest.raises(BadFrame, match=f"16 bytes, not {size}"):
        Signature.unpack(bytes(size))


@pytest.mark.parametrize("offset", [19, *range(44, 60)])
def test_a_reserved_byte_that_is_not_zero_is_refused(offset):
    with pytest.raises(BadFrame, match=r"reserved bytes of a (header|signature) must be zero"):
        Header.unpack(changed(HEADER, offset, 1))


@pytest.mark.parametrize("offset", range(16, 32))
def test_a_control_frame_with_a_signature_is_refused(offset):
    with pytest.raises(BadFrame, match="has no signature"):
        Header.unpack(changed(CONTROL, offset, 1))


@pytest.mark.parametrize(
    ("offset", "code", "words"),
    [
        (5, 0, "kind 0 is unknown"),
        (5, 3, "kind 3 is unknown"),
        (16, 0, "collective 0"),
        (16, 15, "collective 15"),
        (17, 0, "element type 0"),
        (17, 10, "element type 10"),
        (18, 9, "op 9"),
    ],
)
def test_a_code_that_does_not_exist_is_refused_and_named(offset, code, words):
    with pytest.raises(BadFrame, match=words):
        Header.unpack(changed(HEADER, offset, code))


def test_another_version_is_refused_in_words_whatever_its_checksum():
    data = bytearray(HEADER.pack())
    data[4] = 2

    with pytest.raises(BadFrame, match="they speak version 2 of the Phalanx wire, we speak version 1"):
        Header.unpack(bytes(data))


@pytest.mark.parametrize(
    ("opening", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "this looks like HTTP"),
        (b"POST /step HTTP/1.1\r\n", "this looks like HTTP"),
        (b"HTTP/1.1 400 Bad Request\r\n", "this looks like HTTP"),
        (b"PRI * HTTP/2.0\r\n", "this looks like HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", "this looks like TLS"),
        (b"SSH-2.0-OpenSSH_9.7\r\n", "this looks like ssh"),
        (b"\x80\x05\x95pickle", "this is not Phalanx"),
    ],
)
def test_a_stranger_is_named(opening, words):
    with pytest.raises(BadFrame, match=words):
        Header.unpack(opening.ljust(HEADER_BYTES))


@settings(deadline=None)
@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES), st.booleans())
def test_an_error_quotes_at_most_16_bytes_of_the_peers(garbage, is_close):
    checked = (HEADER.pack()[:5] + garbage[5:] if is_close else garbage)[:-4]
    data = checked + crc32(checked).to_bytes(4, "little")

    words = refusal(data)

    assert words.isascii()
    assert words.isprintable()
    assert all(len(digits) <= 32 for digits in re.findall(r"[0-9a-f]+", words))


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        (Signature(Collective.ALL_REDUCE, DType.F32, 1024, op=ReduceOp.SUM), "all_reduce(sum) of 1024 f32"),
        (Signature(Collective.BROADCAST, DType.I64, 7, root=2), "broadcast from rank 2 of 7 i64"),
        (Signature(Collective.SCATTER, DType.U8, 7, root=0), "scatter from rank 0 of 7 u8"),
        (Signature(Collective.REDUCE, DType.BF16, 9, op=ReduceOp.MAX, root=1), "reduce(max) to rank 1 of 9 bf16"),
        (Signature(Collective.GATHER, DType.BOOL, 9, root=1), "gather to rank 1 of 9 bool"),
        (Signature(Collective.ALL_GATHER, DType.F64, 3), "all_gather of 3 f64"),
        (Signature(Collective.ALLOCATE, DType.U8, 5), "allocate of 5 u8"),
        (Signature(Collective.SCATTER_LANES, DType.F32, 5, blocks=0xB7), "scatter_lanes of 5 f32, blocks 00b7"),
        (Signature(Collective.BARRIER, DType.U8, 0), "barrier"),
    ],
)
def test_a_signature_reads_as_words(signature, words):
    assert str(signature) == words


def test_headers_read_as_words():
    assert str(HEADER) == "data, epoch 1, call 17, round 2: all_reduce(sum) of 1024 f32, 4096 bytes"
    assert str(CONTROL) == "control, 57 bytes"
    assert str(HEADER.tag) == "epoch 1, call 17, round 2"


@pytest.mark.parametrize(
    "build",
    [
        lambda: Tag(epoch=2**32, sequence=0, round=0),
        lambda: Tag(epoch=0, sequence=2**64, round=0),
        lambda: Tag(epoch=0, sequence=0, round=2**16),
        lambda: Tag(epoch=-1, sequence=0, round=0),
        lambda: Signature(Collective.SEND, DType.U8, -1),
        lambda: Signature(Collective.SEND, DType.U8, 1, root=0xFFFF),
        lambda: Signature(Collective.BROADCAST_BLOCKS, DType.U8, 1, blocks=2**16),
        lambda: Header(Kind.DATA, HEADER.tag, None, length=1),
        lambda: Header(Kind.CONTROL, HEADER.tag, HEADER.signature, length=1),
        lambda: Header(Kind.CONTROL, HEADER.tag, None, length=2**64),
    ],
)
def test_a_value_that_has_no_bytes_cannot_be_built(build):
    with pytest.raises(AssertionError):
        build()


@given(signatures, signatures)
def test_signatures_that_differ_are_shown_differently(one, other):
    assert (one == other) == (str(one) == str(other))


def test_two_barriers_that_differ_are_shown_differently():
    usual, odd = Signature(Collective.BARRIER, DType.U8, 0), Signature(Collective.BARRIER, DType.U8, 5)

    assert str(usual) == "barrier"
    assert str(odd) != str(usual)

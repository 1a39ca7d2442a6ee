import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.buffers import CHUNK, DType, round_to_bf16, widen_bf16
from phalanx.errors import ConfigError

EVERY_PATTERN = np.arange(2**16, dtype=np.uint16)


def f32(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def rounded(values: np.ndarray) -> np.ndarray:
    out = np.empty(len(values), np.uint16)
    round_to_bf16(values, out)
    return out


def nearest_bf16(bits: int) -> int:
    """The bf16 nearest to a finite f32, by exact fractions: the even one of two equally near."""
    sign, magnitude = bits & 0x80000000, bits & 0x7FFFFFFF
    below = magnitude >> 16
    exact = Fraction(f32(magnitude))
    # Above the largest finite bf16 the next step up is 2**128, which bf16 writes as Inf.
    above = Fraction(2**128) if below == 0x7F7F else Fraction(f32((below + 1) << 16))
    down, up = exact - Fraction(f32(below << 16)), above - exact
    goes_up = up < down or (up == down and below % 2 == 1)
    return sign >> 16 | below + goes_up


def test_codes_and_sizes_on_the_wire_stay_what_they_are():
    table = [(dtype.code, dtype.label, dtype.itemsize) for dtype in DType]

    assert table == [
        (1, "f64", 8),
        (2, "f32", 4),
        (3, "f16", 2),
        (4, "bf16", 2),
        (5, "i64", 8),
        (6, "i32", 4),
        (7, "i8", 1),
        (8, "u8", 1),
        (9, "bool", 1),
    ]


def test_only_the_four_float_types_are_floats():
    assert [dtype.label for dtype in DType if dtype.is_float] == ["f64", "f32", "f16", "bf16"]


def test_the_narrow_floats_add_up_in_f32_and_the_others_in_themselves():
    differing = {dtype: dtype.accumulator for dtype in DType if dtype.accumulator is not dtype}

    assert differing == {DType.F16: DType.F32, DType.BF16: DType.F32}


@pytest.mark.parametrize("dtype", DType)
def test_a_type_is_found_by_code_by_label_by_array_and_by_numpy_type(dtype):
    array = np.zeros(3, dtype.numpy)

    assert DType.from_code(dtype.code) is dtype
    assert DType.parse(dtype) is dtype
    assert DType.parse(dtype.label) is dtype
    assert DType.parse(dtype.numpy) is dtype
    assert DType.of(array) is dtype
    if dtype is not DType.BF16:  # numpy has no type of its own for it
        assert DType.parse(dtype.numpy.type) is dtype


def test_bit_patterns_stay_bf16_in_views_and_copies_and_their_integers_do_not_become_bf16():
    patterns = EVERY_PATTERN.view(DType.BF16.numpy)

    for array in (patterns[3:], patterns.reshape(2, -1), patterns.copy(), np.empty_like(patterns)):
        assert DType.of(array) is DType.BF16
    for array in (EVERY_PATTERN, patterns.view(np.uint16), patterns.astype(np.uint16)):
        with pytest.raises(ConfigError, match="could be integers or bf16"):
            DType.of(array)


def test_an_array_of_bfloat16_from_another_package_is_bf16():
    class Bfloat16:
        name = "bfloat16"

    class Foreign:
        dtype = Bfloat16()

    assert DType.of(Foreign()) is DType.BF16


@pytest.mark.parametrize("code", [0, 10, -1])
def test_an_unknown_code_is_a_value_error(code):
    with pytest.raises(ValueError, match=f"code {code}"):
        DType.from_code(code)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(1, np.uint16), r"uint16 .* i32, .*view\(phalanx.DType.BF16.numpy\)"),
        (np.zeros(1, np.uint32), "uint32 .* i64"),
        (np.zeros(1, np.int16), "int16 .* i32"),
        (np.zeros(1, np.complex64), "complex64 .* real and imaginary"),
        (np.zeros(1, ">f4"), ">f4 .* byte order"),
        (np.array(["a"]), "<U1 .* u8"),
        (np.array([None]), "object .* u8"),
    ],
    ids=lambda value: str(value.dtype) if isinstance(value, np.ndarray) else "",
)
def test_arrays_that_cannot_be_exchanged_are_refused_with_what_to_use_instead(array, words):
    with pytest.raises(ConfigError, match=words):
        DType.of(array)


@pytest.mark.parametrize("value", ["float", "f8", None, 4, np.complex128, np.dtype("u4"), object])
def test_an_argument_that_names_no_type_is_refused(value):
    with pytest.raises(ConfigError, match=r"there are f64|use one of f64"):
        DType.parse(value)


def test_widening_puts_every_bf16_pattern_into_the_upper_half_of_an_f32():
    out = np.empty(2**16, np.float32)

    widen_bf16(EVERY_PATTERN, out)

    assert [int(bits) for bits in out.view(np.uint32)] == [pattern << 16 for pattern in range(2**16)]


def test_every_bf16_survives_widening_and_rounding_but_signalling_nans_become_quiet():
    wide = np.empty(2**16, np.float32)
    is_nan = (EVERY_PATTERN & 0x7FFF) > 0x7F80

    widen_bf16(EVERY_PATTERN, wide)

    np.testing.assert_array_equal(rounded(wide), np.where(is_nan, EVERY_PATTERN | 0x40, EVERY_PATTERN))


@pytest.mark.parametrize(
    "lower", [0x8000, *(pytest.param(lower, marks=pytest.mark.slow) for lower in (0x0001, 0x7FFF, 0x8001, 0xFFFF))]
)
def test_rounding_goes_to_the_nearest_even_from_every_upper_half(lower):
    finite = [upper for upper in range(2**16) if upper & 0x7F80 != 0x7F80]
    values = np.array([upper << 16 | lower for upper in finite], np.uint32)

    result = rounded(values.view(np.float32))

    assert result.tolist() == [nearest_bf16(int(bits)) for bits in values]


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1).filter(lambda bits: bits & 0x7F800000 != 0x7F800000), min_size=1))
def test_rounding_any_finite_value_agrees_with_exact_fractions(patterns):
    values = np.array(patterns, np.uint32)

    result = rounded(values.view(np.float32))

    assert result.tolist() == [nearest_bf16(bits) for bits in patterns]


@pytest.mark.parametrize("bits", [0x7F800001, 0x7F80FFFF, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000])
def test_a_nan_stays_a_quiet_nan_of_the_same_sign(bits):
    values = np.array([bits], np.uint32).view(np.float32)

    (result,) = rounded(values).tolist()

    assert result & 0x7FC0 == 0x7FC0
    assert result >> 15 == bits >> 31


def test_infinities_and_negative_zero_are_kept():
    values = np.array([np.inf, -np.inf, -0.0, 0.0], np.float32)

    assert rounded(values).tolist() == [0x7F80, 0xFF80, 0x8000, 0x0000]


def test_values_beyond_the_largest_bf16_overflow_to_infinity():
    largest = np.finfo(np.float32).max

    assert rounded(np.array([largest, -largest], np.float32)).tolist() == [0x7F80, 0xFF80]


def test_conversions_treat_every_run_alike():
    length = 2 * CHUNK + 5
    patterns = np.resize(EVERY_PATTERN[:0x7F80], length)
    wide = np.empty(length, np.float32)

    widen_bf16(patterns, wide)

    np.testing.assert_array_equal(wide.view(np.uint32), patterns.astype(np.uint32) << 16)
    np.testing.assert_array_equal(rounded(wide), patterns)

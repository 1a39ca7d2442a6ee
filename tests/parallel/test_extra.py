"""A user's own small state, as bytes and back."""

import datetime as dt
import math
from collections import OrderedDict
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from phalanx.errors import ConfigError
from phalanx.parallel.engine.extra import decode_extra, encode_extra

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(), each, max_size=4),
    max_leaves=20,
)
DTYPES = ["bool", "int8", "int64", "uint16", "float16", "float32", "float64"]


@given(st.dictionaries(st.text(), PLAIN, max_size=6))
def test_plain_values_come_back_as_they_were(extra):
    assert repr(decode_extra(encode_extra(extra))) == repr(extra)


@given(st.sampled_from(DTYPES).flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0))))
def test_arrays_come_back_with_all_their_bits(array):
    extra = {"numpy": array, "deep": [{"torch": torch.from_numpy(array.copy())}]}

    back = decode_extra(encode_extra(extra))

    tensor = back["deep"][0]["torch"]
    for found in (back["numpy"], tensor.numpy()):
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
    back["numpy"][...] = 0  # it can be written to
    tensor.zero_()


def test_tensors_of_torchs_own_type_and_with_gaps_come_back():
    extra = {"a": torch.arange(6, dtype=torch.bfloat16), "b": torch.arange(6.0).view(2, 3).T, "c": np.arange(9)[::3]}

    back = decode_extra(encode_extra(extra))

    assert torch.equal(back["a"], extra["a"])
    assert torch.equal(back["b"], extra["b"])
    assert back["c"].tolist() == [0, 3, 6]


def test_nan_comes_back():
    assert math.isnan(decode_extra(encode_extra({"best": math.nan}))["best"])


@dataclass
class Settings:
    rate: float = 0.1


def nested(depth):
    return {"a": nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"when": dt.date(2020, 1, 1)}, r"engine.extra\['when'\] is of type date"),
        ({"a": [1, {"b": (1, {2})}]}, r"engine.extra\['a'\]\[1\]\['b'\]\[1\] is of type set"),
        ({"rng": np.complex64(1)}, r"engine.extra\['rng'\] is an array of type complex64"),
        ({"of": Settings()}, r"engine.extra\['of'\] is of type Settings"),
        ({"sub": OrderedDict()}, r"engine.extra\['sub'\] is of type OrderedDict"),
        ({"a": {3.5: "x"}}, r"engine.extra\['a'\] has the key 3.5, which is no word"),
        ({"big": 2**64}, r"engine.extra\['big'\] is an integer of more than 64 bits"),
        ({"o": np.array([object()])}, r"engine.extra\['o'\] is an array of type object"),
        ({"o": np.zeros(1, ">f4")}, r"engine.extra\['o'\] is an array of type >f4"),
        ({"m": np.ma.array([1])}, r"engine.extra\['m'\] is of type MaskedArray"),
        ({"t": torch.zeros(3).to_sparse()}, r"engine.extra\['t'\] is a tensor of torch.sparse_coo and torch.float32"),
        ({"t": torch.zeros(3, dtype=torch.complex64)}, r"engine.extra\['t'\] is a tensor of .*complex64"),
        (nested(60), "is more than 50 levels deep"),
        ({"a": "\ud800"}, r"engine.extra has a text that is no Unicode"),
        (b"abc", r"engine.extra is of type bytes, and must be a dict"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_words_that_name_the_key(extra, words):
    with pytest.raises(ConfigError, match=words):
        encode_extra(extra)


def ext(*fields, code=1):
    return msgspec.msgpack.encode({"a": msgspec.msgpack.Ext(code, msgspec.msgpack.encode(fields))})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode({b"1": 2}),
        msgspec.msgpack.encode({"a": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}),
        b"\x91" * 100_000,
        b"\x81\xa1a" * 60 + b"\xc0",
        ext(False, "object", [1], b"12345678"),
        ext(False, "O", [1], b"12345678"),
        ext(True, "float32", [2], b"1234"),
        ext(True, "float32", [-1, -1], b"1234"),
        ext(True, "float32", [0, 2**60], b""),
        ext(False, "float32", [0] * 40, b""),
        ext(True, "float32", [1]),
        ext(True, "float32", [1], b"1234", code=7),
    ],
)
def test_bytes_of_a_stranger_are_refused_in_words(data):
    with pytest.raises(ConfigError, match=r"this is no state that engine.extra had: "):
        decode_extra(data)


@given(
    st.binary(max_size=60)
    | st.builds(
        lambda a, b, c: encode_extra({"a": np.arange(3)})[:a] + b + c,
        st.integers(0, 30),
        st.binary(max_size=3),
        st.binary(max_size=20),
    )
)
def test_no_bytes_do_harm(data):
    try:
        extra = decode_extra(data)
    except ConfigError:
        return
    assert decode_extra(encode_extra(extra)).keys() == extra.keys()

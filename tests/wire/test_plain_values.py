"""People's own values as bytes: what a reader refuses."""

import datetime as dt
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import ConfigError
from phalanx.wire import decode_value, encode_value, find_dataclasses, name_class


@dataclass
class Point:
    x: Any
    y: Any = 0

    def __post_init__(self):
        if self.x == "forbidden":
            raise RuntimeError("no")


KNOWN = {name_class(Point): Point}.get


def dataclass_of(name, fields):
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(3, msgspec.msgpack.encode([name, fields])))


def test_dataclasses_in_everything_come_back():
    value = [{"a": (Point(1, [Point(2)]), None)}]

    assert decode_value(encode_value(value, "value"), KNOWN) == value
    assert find_dataclasses(value) == {name_class(Point): Point}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"x": 1}, "with other fields than here"),
        ({"x": 1, "y": 2, "z": 3}, "with other fields than here"),
        ({"x": dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "y": 0}, "is of type datetime"),
        ({"x": {b"1": 2}, "y": 0}, "has the key b'1'"),
    ],
)
def test_fields_that_no_value_has_are_refused_before_the_class_gets_them(fields, words):
    with pytest.raises(ValueError, match=words) as caught:
        decode_value(dataclass_of(name_class(Point), fields), KNOWN)

    assert not isinstance(caught.value, ConfigError)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("builtins.dict", "the dataclass 'builtins.dict' has come"),
        ("os.system", "the dataclass 'os.system' has come"),
        ("x" * 9999, "'x{200}' has come"),
    ],
)
def test_a_class_that_the_reader_has_not_named_is_never_made(name, words):
    with pytest.raises(ConfigError, match=words):
        decode_value(dataclass_of(name, {"x": 1}), KNOWN)


def test_a_class_that_refuses_its_fields_is_told_in_words():
    with pytest.raises(ConfigError, match=r"Point that has come is refused here: no"):
        decode_value(dataclass_of(name_class(Point), {"x": "forbidden", "y": 0}), KNOWN)


def test_extensions_in_extensions_have_a_limit():
    data = msgspec.msgpack.encode(None)
    for _ in range(60):
        data = msgspec.msgpack.encode(msgspec.msgpack.Ext(2, b"\x91" + data))

    with pytest.raises(ValueError, match="more than 50 levels deep"):
        decode_value(data)


@given(
    st.binary(max_size=80)
    | st.builds(
        lambda cut, noise: encode_value([Point((1, 2))], "value")[:cut] + noise,
        st.integers(0, 60),
        st.binary(max_size=9),
    )
)
def test_no_bytes_do_harm(data):
    try:
        value = decode_value(data, KNOWN)
    except ValueError:
        return
    assert encode_value(value, "value")

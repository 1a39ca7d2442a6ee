"""Plain values that ranks give each other."""

import datetime as dt
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.buffers import DType
from phalanx.errors import BadFrame, ConfigError, PhalanxError
from phalanx.group import objects
from phalanx.group.operations import Operation, make_signature
from phalanx.testing import World
from phalanx.wire import Collective

each_world = pytest.mark.parametrize("over", ["memory", "tcp", "arena"])


@dataclass(frozen=True)
class Score:
    name: str
    values: Any
    rank: int = field(default=0, kw_only=True)


@dataclass
class Outer:
    scores: list[Score]
    where: Path = field(init=False)

    def __post_init__(self):
        self.where = Path("here")


@each_world
def test_every_rank_gets_the_values_of_all(over):
    def on_rank(group):
        value = {"rank": group.rank, "loss": [0.5] * group.rank, 3: ("a", None, b"\x00"), "is": True}
        assert group.all_gather_object_nowait(value).wait() == group.all_gather_object(value)
        return group.all_gather_object(value)

    expected = [{"rank": rank, "loss": [0.5] * rank, 3: ("a", None, b"\x00"), "is": True} for rank in range(3)]
    assert World(3, over).run(on_rank) == [expected] * 3


@each_world
@pytest.mark.parametrize("root", [0, 2])
def test_one_rank_gives_a_value_to_all_or_gets_those_of_all(over, root):
    def on_rank(group):
        given = group.broadcast_object({"lr": 0.1, "steps": 10} if group.rank == root else None, root)
        return given, group.gather_object([group.rank] * group.rank, root)

    results = World(3, over).run(on_rank)

    assert [given for given, _ in results] == [{"lr": 0.1, "steps": 10}] * 3
    assert [gathered for _, gathered in results] == [[[], [1], [2, 2]] if rank == root else None for rank in range(3)]


def test_arrays_tensors_and_numbers_of_numpy_come_back_with_type_and_bits():
    torch = pytest.importorskip("torch")

    def on_rank(group):
        value = [np.arange(6, dtype=np.int8).reshape(2, 3), np.float32(0.1), torch.ones(2, dtype=torch.bfloat16)]
        for array, number, tensor in group.all_gather_object(value):
            np.testing.assert_array_equal(array, value[0], strict=True)
            assert number == np.float32(0.1)
            assert type(number) is np.float32
            assert torch.equal(tensor, value[2])

    World(2, "arena").run(on_rank)


def test_dataclasses_come_back_as_themselves():
    def on_rank(group):
        own = Outer([Score("a", np.arange(group.rank), rank=group.rank)])
        _, second = group.all_gather_object(own)
        assert isinstance(second, Outer)
        assert second.where == Path("here")
        assert second.scores[0].values.tolist() == [0]
        return group.broadcast_object(Score("b", 1.0) if group.rank == 0 else None, types=[Score])

    assert World(2, "arena").run(on_rank) == [Score("b", 1.0)] * 2


def test_a_dataclass_that_a_rank_has_not_named_is_refused_there_and_the_group_goes_on():
    def on_rank(group):
        if group.rank == 0:
            group.broadcast_object(Score("b", 1.0))
        else:
            with pytest.raises(ConfigError, match=r"from rank 0: the dataclass '.*Score' has come.*pass it in types"):
                group.broadcast_object()
        return group.all_reduce(1)

    assert World(2, "arena").run(on_rank) == [2, 2]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [1, {2}]}, r"value\['a'\]\[1\] is of type set"),
        (Score("a", {"b": dt.date(2020, 1, 1)}), r"value.values\['b'\] is of type date"),
        (lambda: 0, "value is of type function"),
        (np.array([object()]), "value is an array of type object"),
        ({(1, 2): 3}, r"value has the key \(1, 2\), which is no word"),
        (2**64, "value is an integer of more than 64 bits"),
        (1j, "value is of type complex"),
    ],
)
def test_a_value_that_cannot_travel_is_refused_with_its_type_and_place(value, words):
    def on_rank(group):
        for call in (
            group.all_gather_object,
            group.gather_object,
            lambda each: group.broadcast_object(each, group.rank),
        ):
            with pytest.raises(ConfigError, match=words):
                call(value)
        return group.all_reduce(1)

    assert World(2, "tcp").run(on_rank) == [2, 2]


def test_a_value_that_is_too_large_is_refused_before_anything_is_sent(monkeypatch):
    monkeypatch.setattr(objects, "MOST_BYTES", 1000)

    def on_rank(group):
        with pytest.raises(ConfigError, match="pass its arrays to a call for arrays"):
            group.all_gather_object(bytes(1001))
        return group.all_gather_object(bytes(900))

    assert World(1, "tcp").run(on_rank) == [[bytes(900)]]


def send_bytes(group, operation):
    """Be a hostile rank: take part in an operation, and do not look at what comes of it."""
    with suppress(PhalanxError):
        group._now(replace(operation, read=None), None)
        group.barrier()


@pytest.mark.parametrize("data", [b"\xc1", b"\x91" * 1000, b"\xc7\x01\x07\x00", b"\xd6\xff\x00\x00\x00\x00"])
@pytest.mark.parametrize("call", ["all_gather", "broadcast", "gather"])
def test_bytes_of_a_hostile_rank_are_refused_and_it_is_named(call, data, monkeypatch):
    encode = objects._encode
    monkeypatch.setattr(
        objects, "_encode", lambda value: np.frombuffer(data, np.uint8) if value == "lie" else encode(value)
    )
    arguments = {"all_gather": [], "broadcast": [0], "gather": [1]}[call]

    def on_rank(group):
        if group.rank == 0:
            send_bytes(group, getattr(group._objects, call)("lie", *arguments, ()))
            return
        with pytest.raises(BadFrame, match="rank 0 sent bytes that are no value"):
            getattr(group, f"{call}_object")("truth", *arguments)

    World(2, "arena").run(on_rank)


def test_a_rank_that_claims_a_huge_value_is_not_believed():
    def on_rank(group):
        if group.rank == 0:
            signature = make_signature(Collective.BROADCAST, DType.I64, 1, root=0)
            send_bytes(group, Operation(signature, group._team.broadcast, (np.array([2**50]),), None))
            return
        with pytest.raises(BadFrame, match="rank 0 wants to broadcast a value of 1125899906842624 bytes"):
            group.broadcast_object()

    World(2, "arena").run(on_rank)

"""Calls take tensors of torch and numbers as well as arrays."""

import array as plain
import subprocess
import sys

import numpy as np
import pytest

from phalanx.errors import ConfigError
from phalanx.testing import World

torch = pytest.importorskip("torch")

each_world = pytest.mark.parametrize("over", ["tcp", "arena"])


@each_world
@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8"])
def test_a_tensor_is_reduced_where_it_lies(over, name):
    def on_rank(group):
        tensor = torch.full((2, 3), group.rank + 1, dtype=getattr(torch, name))
        place = tensor.data_ptr()

        result = group.all_reduce(tensor)

        assert result is tensor
        assert tensor.data_ptr() == place
        return tensor.tolist()

    assert World(3, over).run(on_rank) == [[[6] * 3] * 2] * 3


@each_world
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_what_a_call_makes_of_a_tensor_is_a_tensor_of_its_type(over, dtype):
    def on_rank(group):
        own = torch.tensor([group.rank, 1]).to(dtype)
        rows = torch.tensor([[0, 1], [1, 1]]).to(dtype)
        out = torch.empty(2, dtype=dtype)
        made = [
            group.all_gather(own),
            group.all_to_all(own),
            group.scatter(rows if group.rank == 0 else None, out),
            group.broadcast(own.clone(), 1),
            *group.all_gather_unequal(own[: 1 + group.rank]),
        ]
        gathered = group.gather(own)
        assert out is made[2]
        assert all(each.dtype is dtype for each in made)
        return [each.int().tolist() for each in made], gathered is None or gathered.int().tolist()

    first, second = World(2, over).run(on_rank)

    assert first == ([[[0, 1], [1, 1]], [0, 1], [0, 1], [1, 1], [0], [1, 1]], [[0, 1], [1, 1]])
    assert second == ([[[0, 1], [1, 1]], [1, 1], [1, 1], [1, 1], [0], [1, 1]], True)


def test_an_array_and_a_tensor_meet_in_one_call():
    def on_rank(group):
        own = np.ones(4) if group.rank else torch.ones(4, dtype=torch.float64)
        return group.all_reduce(own).tolist()

    assert World(2, "arena").run(on_rank) == [[2.0] * 4] * 2


def test_tensors_are_sent_and_received():
    def on_rank(group):
        if group.rank == 0:
            group.send(torch.arange(3.0), 1)
            return None
        return group.recv(torch.empty(3), 0).tolist()

    assert World(2, "tcp").run(on_rank) == [None, [0.0, 1.0, 2.0]]


def test_any_object_that_shares_its_memory_is_reduced():
    def on_rank(group):
        numbers = plain.array("d", [1.0, 2.0])
        group.all_reduce(numbers)
        return list(numbers)

    assert World(2, "arena").run(on_rank) == [[2.0, 4.0]] * 2


class OnDevice(torch.Tensor):
    """A tensor that says it is on a GPU, which there may be none of here."""

    device = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.ones(3, requires_grad=True), r"requires grad.*pass array.detach\(\)"),
        (lambda: torch.nn.Parameter(torch.ones(3)), r"requires grad.*pass array.detach\(\)"),
        (lambda: torch.ones(3).as_subclass(OnDevice), r"is on cuda:0.*pass array.cpu\(\)"),
        (lambda: torch.ones(3).to_sparse(), r"is sparse.*pass array.to_dense\(\)"),
        (lambda: torch.ones(3, 2).T, r"not contiguous: pass array.contiguous\(\)"),
        (lambda: torch.ones(3, dtype=torch.complex64), "view it as its real and imaginary parts"),
        (lambda: torch.ones(3, dtype=torch.float8_e5m2), "cannot be exchanged"),
        (lambda: [1.0, 2.0], "must be an array that shares its memory, not list"),
        (lambda: "text", "must be an array that shares its memory, not str"),
        (lambda: None, "must be an array that shares its memory, not NoneType"),
        (lambda: 2**64, "more than 64 bits"),
    ],
)
def test_what_cannot_be_exchanged_is_refused_in_words(make, words):
    def on_rank(group):
        with pytest.raises(ConfigError, match=words):
            group.all_reduce(make())
        return group.all_reduce(1)

    assert World(2, "arena").run(on_rank) == [2, 2]


@each_world
def test_numbers_are_reduced_and_come_back_as_numbers(over):
    def on_rank(group):
        mean = group.all_reduce_nowait(float(group.rank), "mean")
        found = [
            group.all_reduce(3.0),
            group.all_reduce(group.rank, "max"),
            group.reduce(1, root=1),
            group.broadcast(group.rank + 5, root=1),
            group.all_reduce(np.float32(0.5)),
            mean.wait(),
        ]
        return [(type(each).__name__, each.item() if isinstance(each, np.generic) else each) for each in found]

    first, second = World(2, over).run(on_rank)

    assert second == [("float", 6.0), ("int", 1), ("int", 2), ("int", 6), ("float32", 1.0), ("float", 0.5)]
    assert first == [*second[:2], ("int", 1), *second[3:]]


def test_a_number_has_no_out():
    def on_rank(group):
        with pytest.raises(ConfigError, match="leave out away"):
            group.all_reduce(1.0, out=np.zeros(1))

    World(1, "tcp").run(on_rank)


def test_the_group_does_not_import_torch_for_this():
    program = "import numpy, sys, phalanx\ng = phalanx.connect()\ng.all_reduce(numpy.ones(1)), g.all_reduce(1)\n"

    done = subprocess.run([sys.executable, "-c", f"{program}sys.exit('torch' in sys.modules)"], check=False)

    assert done.returncode == 0

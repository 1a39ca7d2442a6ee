"""Requests that make no sense get a ConfigError that says what to do instead, and nothing is changed or sent."""

import numpy as np
import pytest

from phalanx.errors import ConfigError
from phalanx.testing import World

F32 = np.float32
U16 = np.ones(4, np.uint16)


def read_only(array):
    array.flags.writeable = False
    return array


def broadcast_blocks(blocks, owners):
    return lambda group: group.broadcast_blocks(np.ones(6), blocks=blocks, owners=owners)


def scatter_lanes(blocks, owners):
    return lambda group: group.scatter_lanes(np.ones((1, 6)), np.ones(6), lanes=2, blocks=blocks, owners=owners)


BAD = {
    "rank out of range": (lambda g: g.broadcast(np.ones(3), 2), "from 0 to 1"),
    "negative rank": (lambda g: g.reduce(np.ones(3), -1), "from 0 to 1"),
    "rank of another type": (lambda g: g.gather(np.ones(3), "0"), "from 0 to 1"),
    "send to itself": (lambda g: g.send(np.ones(3), g.rank), "copy the array"),
    "receive out of range": (lambda g: g.recv(np.ones(3), 7), "from 0 to 1"),
    "objects": (lambda g: g.all_reduce(np.array([{}, []], dtype=object)), "cannot be exchanged"),
    "text": (lambda g: g.all_gather(np.array(["a"])), "cannot be exchanged"),
    "complex": (lambda g: g.all_reduce(np.ones(3, np.complex64)), "cannot be exchanged"),
    **{
        f"{name} of uint16": (call, "could be integers or bf16")
        for name, call in {
            "all_reduce": lambda g: g.all_reduce(U16),
            "all_reduce into": lambda g: g.all_reduce(np.ones(4), out=U16),
            "reduce": lambda g: g.reduce(U16),
            "reduce_scatter": lambda g: g.reduce_scatter(U16),
            "all_gather": lambda g: g.all_gather(U16),
            "all_gather_unequal": lambda g: g.all_gather_unequal(U16),
            "broadcast": lambda g: g.broadcast(U16),
            "broadcast_blocks": lambda g: g.broadcast_blocks(U16, blocks=[slice(0, 4)], owners=[0]),
            "gather": lambda g: g.gather(U16),
            "scatter": lambda g: g.scatter(None, U16, 1 - g.rank),
            "all_to_all": lambda g: g.all_to_all(U16),
            "send": lambda g: g.send(U16, 1 - g.rank),
            "recv": lambda g: g.recv(U16, 1 - g.rank),
            "fold_lanes": lambda g: g.fold_lanes(U16.reshape(1, 4), U16, lanes=2),
            "scatter_lanes": lambda g: g.scatter_lanes(U16.reshape(1, 4), U16, lanes=2, blocks=[], owners=[]),
            "allocate": lambda g: g.allocate(4, np.uint16),
        }.items()
    },
    "a list": (lambda g: g.all_reduce([1.0, 2.0]), "np.asarray"),
    "non-contiguous": (lambda g: g.all_reduce(np.ones((4, 4))[:, 0]), "np.ascontiguousarray"),
    "other byte order": (lambda g: g.all_reduce(np.ones(3, ">f4")), "byte order"),
    "read-only": (lambda g: g.all_reduce(read_only(np.ones(3))), "pass a copy"),
    "read-only out": (lambda g: g.all_reduce(np.ones(3), out=read_only(np.ones(3))), "pass a copy"),
    "unknown operation": (lambda g: g.all_reduce(np.ones(3), "average"), "use one of sum, mean"),
    "mean of integers": (lambda g: g.all_reduce(np.ones(3, np.int32), "mean"), "use SUM and divide"),
    "out of another length": (lambda g: g.all_reduce(np.ones(3), out=np.ones(4)), "must have shape"),
    "out of another type": (lambda g: g.all_reduce(np.ones(3), out=np.ones(3, F32)), "must have shape"),
    "wire of another type": (lambda g: g.all_reduce(np.ones(3), wire="bf16"), "only f32 can"),
    "unknown wire": (lambda g: g.all_reduce(np.ones(3, F32), wire="fp8"), "no element type"),
    "no time": (lambda g: g.barrier(timeout_s=0), "more than 0 seconds"),
    "no time for a wait": (lambda g: g.barrier_nowait(timeout_s=-1), "more than 0 seconds"),
    "negative size": (lambda g: g.allocate(-1), "0 or more"),
    "unknown type": (lambda g: g.allocate(3, "f8"), "use one of f64"),
    "parts that do not divide": (lambda g: g.all_to_all(np.ones(3)), "multiple of 2"),
    "one value to scatter": (lambda g: g.reduce_scatter(np.array(1.0)), "at least one axis"),
    "scatter of the wrong shape": (lambda g: g.scatter(np.ones((3, 2)), np.ones(2), g.rank), "shape (2, 2)"),
    "scatter of nothing": (lambda g: g.scatter(None, np.ones(2), g.rank), "shape (2, 2)"),
    "a block without an owner": (broadcast_blocks([slice(0, 2), slice(2, 4)], [0]), "each of the 2 blocks"),
    "an owner without a block": (scatter_lanes([], [0]), "each of the 0 blocks"),
    "an owner out of range": (scatter_lanes([slice(0, 2)], [2]), "ranks from 0 to 1, not 2"),
    "a negative owner": (broadcast_blocks([slice(0, 2)], [-1]), "ranks from 0 to 1, not -1"),
    "a block outside": (scatter_lanes([slice(0, 7)], [0]), "within 0 to 6"),
    "a block counted from the end": (broadcast_blocks([slice(-2, 6)], [0]), "within 0 to 6"),
    "a block without an end": (broadcast_blocks([slice(2, None)], [0]), "within 0 to 6"),
    "an empty block": (scatter_lanes([slice(2, 2)], [0]), "with elements"),
    "a block with gaps": (broadcast_blocks([slice(0, 4, 2)], [0]), "with elements"),
    "blocks that overlap": (scatter_lanes([slice(0, 3), slice(2, 4)], [0, 0]), "apart"),
    "blocks out of order": (broadcast_blocks([slice(2, 4), slice(0, 2)], [0, 1]), "in order"),
    "blocks of a read-only array": (
        lambda g: g.broadcast_blocks(read_only(np.ones(2)), blocks=[slice(0, 2)], owners=[0]),
        "pass a copy",
    ),
    "lanes of integers": (
        lambda g: g.scatter_lanes(np.ones((1, 2), int), np.ones(2, int), lanes=2, blocks=[], owners=[]),
        "cannot be shared",
    ),
    "subgroup without this rank": (lambda g: g.subgroup([1 - g.rank]), "only members"),
    "subgroup of strangers": (lambda g: g.subgroup([0, 1, 2]), "from 0 to 1"),
    "subgroup with a twin": (lambda g: g.subgroup([0, 0, 1]), "different ranks"),
    "unknown collective to explain": (lambda g: g.explain("all_shuffle", 4), "use one of all_reduce"),
    "negative bytes to explain": (lambda g: g.explain("all_reduce", -4), "0 bytes or more"),
}


@pytest.mark.parametrize("over", ["memory", "arena"])
def test_a_bad_request_says_what_to_do_and_leaves_the_group_as_it_was(over):
    def on_rank(group):
        for name, (request, advice) in BAD.items():
            before = group.statistics()
            with pytest.raises(ConfigError) as caught:
                request(group)
            assert advice in str(caught.value), (name, str(caught.value))
            assert group.statistics() == before, name
        return group.all_reduce(np.ones(3)).tolist()

    assert World(2, over).run(on_rank) == [[2, 2, 2]] * 2


@pytest.mark.parametrize("over", ["memory", "tcp", "arena"])
def test_a_refused_array_is_left_untouched(over):
    def on_rank(group):
        array = np.arange(6.0).reshape(2, 3)
        for bad in (array[:, :2], read_only(array.copy())):
            with pytest.raises(ConfigError):
                group.all_reduce(bad)
        return array.tolist()

    assert World(2, over).run(on_rank) == [[[0, 1, 2], [3, 4, 5]]] * 2


@pytest.mark.parametrize(("size", "over"), [(0, "memory"), (2, "smoke signals")])
def test_an_impossible_world_is_refused(size, over):
    with pytest.raises(ConfigError):
        World(size, over)

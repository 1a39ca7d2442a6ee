"""A checkpoint in shards, merged, is what would have been saved whole, byte for byte."""

from itertools import pairwise

import pytest
import torch
from checkpoint_play import make, names, remove
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_play import make_whole, save_shards

from phalanx.errors import ConfigError
from phalanx.train.checkpoint import Checkpoint, load, merge_shards, save


def assert_same_bytes(path, expected):
    assert names(path) == names(expected)
    for name in names(path):
        assert (path / name).read_bytes() == (expected / name).read_bytes(), name


@st.composite
def checkpoints_in_shards(draw):
    """A checkpoint, and its optimizer's state in shards, of which anybody may own anything."""
    size = draw(st.integers(2, 4))
    model, state, shards = {}, {}, [{} for _ in range(size)]
    for number, shape in enumerate(draw(st.lists(st.sampled_from([(), (7,), (3, 5), (2, 0)]), min_size=1, max_size=4))):
        name = f"layers.{number}.weight"
        model[name] = torch.rand(shape)
        dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int8, torch.float64]))
        moment = state[f"{name}.moment"] = torch.randint(0, 99, shape).to(dtype)
        state[f"{name}.step"] = torch.tensor(float(number))
        inner = draw(st.sets(st.integers(1, max(moment.numel() - 1, 1)), max_size=3))
        edges = [0, *sorted(edge for edge in inner if edge < moment.numel()), moment.numel()]
        for start, stop in pairwise(edges):
            owner = shards[draw(st.integers(0, size - 1))]
            owner[f"{name}.moment[{start}:{stop}]"] = moment.reshape(-1)[start:stop]
            owner[f"{name}.step"] = state[f"{name}.step"]
    state["odd.table"] = shards[draw(st.integers(0, size - 1))]["odd.table"] = torch.rand(2, 3)
    return Checkpoint(4, {"model": model, "optimizer": state}, {"tokens": 40}), shards


@settings(deadline=None, max_examples=25)
@given(checkpoints_in_shards())
def test_merged_shards_have_the_bytes_of_the_whole_state(tmp_path_factory, drawn):
    whole, shards = drawn
    folder = tmp_path_factory.mktemp("checkpoints")
    path = save_shards(folder / "shards", whole, shards)

    merged = merge_shards(path, folder / "merged")

    assert merged == folder / "merged" / "step-00000004"
    assert_same_bytes(merged, save(folder / "whole", whole))


def test_a_state_whose_parameter_the_model_does_not_have_is_flat(tmp_path):
    shards = [{"gone.moment[2:5]": torch.arange(2.0, 5.0)}, {"gone.moment[0:2]": torch.arange(2.0)}]
    path = save_shards(tmp_path / "shards", make_whole(1), shards)

    merged = load(merge_shards(path, tmp_path / "merged"))

    assert torch.equal(merged.files["optimizer"]["gone.moment"], torch.arange(5.0))


def test_a_whole_checkpoint_is_copied(tmp_path):
    path = save(tmp_path / "whole", make(3))

    copied = merge_shards(path, tmp_path / "copied")

    assert_same_bytes(copied, path)


def test_a_checkpoint_that_is_there_is_not_replaced(tmp_path):
    path = save_shards(tmp_path, make_whole(3))
    before = names(path)

    with pytest.raises(ConfigError, match=f"^{path} exists already: name another folder$"):
        merge_shards(path, tmp_path)

    assert names(path) == before


def test_a_checkpoint_that_is_not_whole_is_not_merged(tmp_path):
    path = save_shards(tmp_path / "shards", make_whole(3))
    remove(path / "optimizer.1-of-4.safetensors")

    with pytest.raises(ConfigError, match=r"is damaged: optimizer.1-of-4.safetensors cannot be read"):
        merge_shards(path, tmp_path / "merged")

    assert not (tmp_path / "merged").exists()

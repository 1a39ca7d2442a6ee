"""What was saved is loaded, bit for bit, and damage is noticed."""

import json
import math

import pytest
import torch
from checkpoint_play import FILES, alter, assert_same, make, names, remove, truncate
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from phalanx.errors import ConfigError
from phalanx.testing.hostile import repair_hashes, rewrite_tensors
from phalanx.testing.hostile.tensors import rewrite_json
from phalanx.train.checkpoint import Checkpoint, cut, load, save

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "checkpoints"


# Writing and reading


def test_what_was_saved_is_loaded(folder):
    path = save(folder, make(123))

    assert path == folder / "step-00000123"
    assert names(folder) == ["step-00000123"]
    assert names(path) == FILES
    assert_same(load(path), make(123))


def test_the_manifest_names_format_step_sizes_and_hashes(folder):
    path = save(folder, make(3))

    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))

    assert (manifest["format"], manifest["step"]) == (2, 3)
    assert {name: entry["size_bytes"] for name, entry in manifest["files"].items()} == {
        name: (path / name).stat().st_size for name in FILES if name != "manifest.json"
    }
    assert all(len(entry["sha256"]) == 64 for entry in manifest["files"].values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)])
def test_a_tensor_of_any_type_and_shape_comes_back(folder, dtype, shape):
    tensor = torch.randint(0, 2, shape).to(dtype)
    expected = Checkpoint(1, {"model": {"odd": torch.ones(3, dtype=torch.uint8), "tensor": tensor}}, {})

    found = load(save(folder, expected))

    assert_same(found, expected)


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(st.text(min_size=1, max_size=8), st.sampled_from(DTYPES), max_size=6))
def test_files_are_such_as_the_library_reads(tmp_path_factory, dtypes):
    tensors = {name: torch.arange(3).to(dtype) for name, dtype in dtypes.items() if name != "__metadata__"}

    path = save(tmp_path_factory.mktemp("checkpoints"), Checkpoint(1, {"model": tensors}, {}))

    found = load_file(path / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in found.values())


def test_views_of_one_storage_are_written_as_what_they_show(folder):
    storage = torch.arange(100.0)
    square = storage[:64].view(8, 8)
    views = {"square": square, "turned": square.t(), "again": square, "spread": storage[1::7], "last": storage[99]}
    views["weight"] = torch.nn.Parameter(storage[10:20])

    path = save(folder, Checkpoint(1, {"model": views}, {}))

    assert_same(load(path), Checkpoint(1, {"model": views}, {}))
    assert (path / "model.safetensors").stat().st_size < 2000


def test_bits_that_are_no_number_stay_as_they_are(folder):
    bits = torch.tensor([0x7FC00001, 0x7F800000, -0x80000000, -0x00400001], dtype=torch.int32)

    found = load(save(folder, Checkpoint(1, {"model": {"odd": bits.view(torch.float32)}}, {})))

    assert torch.equal(found.files["model"]["odd"].view(torch.int32), bits)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_tensors_on_a_gpu_come_back_on_the_cpu(folder):
    tensor = torch.arange(12.0, device="cuda").view(3, 4).t()

    found = load(save(folder, Checkpoint(1, {"model": {"weight": tensor}}, {})))

    assert torch.equal(found.files["model"]["weight"], tensor.cpu())


def test_tensors_that_were_loaded_outlive_their_files_and_can_be_changed(folder):
    save(folder, make(1))
    weight = load(save(folder, make(2))).files["model"]["weight"]

    cut(folder, 1)
    weight += 1

    assert torch.equal(weight, make(3).files["model"]["weight"])


@pytest.mark.parametrize("facts", [{"best": math.inf}, {"best": math.nan}, {"pair": (1, 2)}, {1: "one"}])
def test_facts_that_json_would_change_are_refused(facts):
    with pytest.raises(ConfigError, match=r"^the facts of a checkpoint must be equal after a round trip"):
        Checkpoint(1, {}, facts)


# Saving the same step again


def test_a_whole_checkpoint_with_the_same_tensors_is_not_touched(folder):
    path = save(folder, make(1))
    before = path.stat().st_ino

    save(folder, Checkpoint(1, make(1).files, {"said": "later"}))

    assert path.stat().st_ino == before
    assert_same(load(path), make(1))
    assert names(folder) == ["step-00000001"]


def test_a_checkpoint_with_other_tensors_or_damage_is_replaced(folder):
    save(folder, make(1, size=4))
    path = save(folder, make(1))
    assert_same(load(path), make(1))

    (path / "facts.json").unlink()
    save(folder, make(1))

    assert_same(load(path), make(1))
    assert names(folder) == ["step-00000001"]


# Damage


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_noticed(folder, name):
    file = save(folder, make(3)) / name
    data = file.read_bytes()

    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"^checkpoint .*step-00000003 is damaged: "):
            load(file.parent)


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_short_anywhere_is_noticed(folder, name):
    file = save(folder, make(3)) / name
    data = file.read_bytes()

    for size in range(len(data)):
        file.write_bytes(data[:size])
        with pytest.raises(ConfigError, match=r"^checkpoint .*step-00000003 is damaged: .*" + name):
            load(file.parent)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (alter, "model.safetensors does not have the hash in manifest.json"),
        (truncate, "model.safetensors has 96 bytes instead of the 104 in manifest.json"),
        (remove, "model.safetensors cannot be read: No such file or directory"),
    ],
)
def test_damage_is_named(folder, damage, words):
    path = save(folder, make(3))
    damage(path / "model.safetensors")

    with pytest.raises(ConfigError) as caught:
        load(path)

    assert str(caught.value) == f"checkpoint {path} is damaged: {words}"


def test_a_tensor_that_was_saved_and_is_not_there_is_missed(folder):
    path = save(folder, make(3))
    rewrite_tensors(path / "optimizer.safetensors", lambda _: {})
    repair_hashes(path)

    with pytest.raises(ConfigError, match=r"step-00000003 is damaged: moment is missing$"):
        load(path)


def test_a_checkpoint_of_an_earlier_format_is_refused_as_such(folder):
    path = save(folder, make(3))
    rewrite_json(path / "manifest.json", lambda found: {"format": 1, "step": 3, "files": found["files"]})

    with pytest.raises(ConfigError, match=r"its format is 1, and this version of Phalanx reads 2$"):
        load(path)


def test_the_checkpoint_of_another_step_under_a_wrong_name_is_refused(folder):
    path = save(folder, make(3)).rename(folder / "step-00000004")

    with pytest.raises(ConfigError, match=r"step-00000004 is damaged: manifest.json belongs to step 3$"):
        load(path)

"""Whatever happens to the files of a checkpoint, with hashes that are right: it is refused in words, or it is whole."""

import json
import shutil

import pytest
from hostile_play import make_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import training

from phalanx.errors import ConfigError
from phalanx.testing.hostile import StoredTensor, repair_hashes, rewrite_tensors
from phalanx.train.checkpoint import load_for_resume
from phalanx.train.rundir import read_config
from phalanx.train.shapes import list_shapes

FILES = ["model.safetensors", "optimizer.0-of-2.safetensors", "optimizer.1-of-2.safetensors"]
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("made"), workers=2)


def change_json(draw, file):
    """Replace, remove or add a value anywhere in a JSON file."""
    found = json.loads(file.read_bytes())
    place, name = {"top": found}, "top"
    while isinstance(place[name], dict) and place[name] and draw(st.integers(0, 3)):
        place, name = place[name], draw(st.sampled_from(sorted(place[name])))
    action = draw(st.sampled_from(["replace", "remove", "add"]))
    if action == "replace" or name == "top":
        place[name] = draw(values)
    elif action == "remove":
        del place[name]
    else:
        place[draw(st.text(max_size=9))] = draw(values)
    file.write_text(json.dumps(place.get("top", found)), encoding="utf-8")


def change_tensors(draw, file):
    """Remove, rename, recast, reshape or repeat a tensor, or add one."""

    def change(found):
        name = draw(st.sampled_from(sorted(found)))
        tensor = found.pop(name)
        match draw(st.sampled_from(["remove", "rename", "recast", "reshape", "span", "shorten", "add"])):
            case "rename":
                found[draw(st.text(max_size=12) | st.sampled_from(sorted({*found, name})))] = tensor
            case "recast":
                found[name] = tensor._replace(dtype=draw(st.sampled_from(["F64", "F32", "BF16", "I32", "U8", "X"])))
            case "reshape":
                found[name] = tensor._replace(shape=draw(st.lists(st.integers(0, 2**64), max_size=4)))
            case "span":
                start, stop = draw(st.tuples(st.integers(0, 300), st.integers(0, 300)))
                found[f"{name.partition('[')[0]}[{start}:{stop}]"] = tensor
            case "shorten":
                found[name] = tensor._replace(data=tensor.data[: draw(st.integers(0, len(tensor.data)))])
            case "add":
                found[name] = tensor
                found[draw(st.text(max_size=12))] = StoredTensor("F32", [1], b"abcd")
        return found

    rewrite_tensors(file, change)


def change_bytes(draw, file):
    """Change some bytes of a file, or its length."""
    content = bytearray(file.read_bytes())
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, min(len(content), 400)))
        content[start : start + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
    file.write_bytes(content)


CHANGES = [(change_json, ["facts.json"]), (change_tensors, FILES), (change_bytes, ["facts.json", *FILES])]


@pytest.mark.long
@pytest.mark.slow
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_changed_checkpoint_is_refused_in_words_or_complete(made, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("changed") / "checkpoints"
    shutil.copytree(made.checkpoints / "step-00000004", folder / "step-00000004")
    path, config = folder / "step-00000004", read_config(made.config)
    change, files = data.draw(st.sampled_from(CHANGES))
    change(data.draw, path / data.draw(st.sampled_from(files)))
    repair_hashes(path)
    if data.draw(st.booleans()):
        change_json(data.draw, path / "manifest.json")

    try:
        found, words = load_for_resume(folder, model=config.model), None
    except ConfigError as error:
        found, words = None, str(error)
    finally:
        shutil.rmtree(folder.parent)

    if found is None:
        assert words.startswith(f"checkpoint {path} is ")
        assert words.isprintable()
        return
    shapes = {name: tuple(tensor.shape) for name, tensor in found.files["model"].items()}
    assert shapes == list_shapes(config.model, 256)
    with training(config, found) as trainer:
        assert all(len(state) == 3 for state in trainer.engine.optimizer.state.values())

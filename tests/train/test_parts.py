import pytest
from tiny import CPU, make_config

from phalanx.gradient_server import Component, ModelBlock
from phalanx.parallel.reduction import ParameterSpec, arrange
from phalanx.train.loop import make_model
from phalanx.train.parts import list_parts


def test_parts_are_listed_from_the_head_to_the_embedding(tmp_path):
    model = make_model(make_config(tmp_path), 256, CPU)

    parts = list_parts(model)

    assert [part.what for part in parts] == [
        Component.LM_HEAD,
        Component.FINAL_NORM,
        ModelBlock(1, 2),
        ModelBlock(0, 2),
        Component.EMBEDDING,
    ]
    assert sorted(name for part in parts for name in part.names) == sorted(name for name, _ in model.named_parameters())


@pytest.mark.parametrize("tied", ["true", "false"])
def test_parts_are_listed_in_the_order_in_which_their_buckets_leave(tmp_path, tied):
    model = make_model(make_config(tmp_path, f"model.tied={tied}"), 256, CPU)
    specs = [ParameterSpec(name, parameter.numel()) for name, parameter in model.named_parameters()]
    numbers = {spec.name: number for number, spec in enumerate(specs)}

    filled = [tuple(numbers[name] for name in part.names) for part in list_parts(model)]

    assert [bucket.parameters for bucket in arrange(specs, filled).buckets] == filled


def test_a_head_that_is_the_embedding_leaves_with_it(tmp_path):
    model = make_model(make_config(tmp_path, "model.tied=true"), 256, CPU)

    parts = list_parts(model)

    assert [part.what for part in parts] == [
        Component.FINAL_NORM,
        ModelBlock(1, 2),
        ModelBlock(0, 2),
        Component.EMBEDDING,
    ]
    assert parts[-1].names == ("embedding.weight",)


def test_a_model_of_eleven_blocks_keeps_them_apart(tmp_path):
    model = make_model(make_config(tmp_path, "model.layers=11"), 256, CPU)

    first = next(part for part in list_parts(model) if part.what == ModelBlock(1, 11))

    assert len(first.names) == 9
    assert all(name.startswith("blocks.1.") for name in first.names)

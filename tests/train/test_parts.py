from tiny import CPU, make_config

from phalanx.gradient_server import Component, ModelBlock
from phalanx.train.loop import make_model
from phalanx.train.parts import list_parts


def test_blocks_leave_from_the_last_then_head_norm_and_embedding(tmp_path):
    model = make_model(make_config(tmp_path), 256, CPU)

    parts = list_parts(model)

    assert [part.what for part in parts] == [
        ModelBlock(1, 2),
        ModelBlock(0, 2),
        Component.LM_HEAD,
        Component.FINAL_NORM,
        Component.EMBEDDING,
    ]
    assert sorted(name for part in parts for name in part.names) == sorted(name for name, _ in model.named_parameters())


def test_a_head_that_is_the_embedding_leaves_with_it(tmp_path):
    model = make_model(make_config(tmp_path, "model.tied=true"), 256, CPU)

    parts = list_parts(model)

    assert [part.what for part in parts][2:] == [Component.FINAL_NORM, Component.EMBEDDING]
    assert parts[-1].names == ("embedding.weight",)


def test_a_model_of_eleven_blocks_keeps_them_apart(tmp_path):
    model = make_model(make_config(tmp_path, "model.layers=11"), 256, CPU)

    first = next(part for part in list_parts(model) if part.what == ModelBlock(1, 11))

    assert len(first.names) == 9
    assert all(name.startswith("blocks.1.") for name in first.names)

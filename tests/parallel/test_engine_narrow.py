"""An engine of bf16 weights: f32 values are updated, the weights are these rounded, and the bits do not change."""

import pytest
import torch
from engine_play import LANES, Toy, digest_of, make_engine, run, train
from spread import of_all, spread

from phalanx.errors import ConfigError
from phalanx.group import alone
from phalanx.parallel import Engine


class Narrow(Toy):
    """Weights in bf16. Its first matrix has two blocks."""

    def __init__(self):
        super().__init__(hidden=27_001)
        self.bfloat16()


def narrow_loss(model, batch):
    x, y, lane = batch
    return torch.nn.functional.mse_loss(model(x.bfloat16(), lane % 3 == 0).float(), y)


@pytest.fixture(scope="module")
def expected():
    return run(1, steps=5, micro=2, clip=0.5, model=Narrow, loss=narrow_loss)


@pytest.mark.parametrize("size", [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2, 4))])
@pytest.mark.parametrize("zero", [False, True])
def test_bf16_weights_have_the_same_bits_for_any_number_of_ranks(size, zero, expected):
    assert run(size, steps=5, micro=2, clip=0.5, model=Narrow, loss=narrow_loss, zero=zero) == expected


def test_updates_that_are_too_small_for_bf16_add_up():
    model = torch.nn.Linear(1, 1, bias=False).bfloat16()
    torch.nn.init.ones_(model.weight)

    with alone(lanes=1) as group:
        engine = Engine(model, lambda model, x: model(x).float().sum(), torch.optim.SGD, group, lr=2.0**-12)
        for _ in range(32):
            engine.step(lambda _: [torch.ones(1, 1, dtype=torch.bfloat16)])

    assert model.weight.item() == 1 - 2**-7  # one step alone would be rounded away


@pytest.mark.parametrize("zero", [False, True])
def test_a_run_of_bf16_weights_goes_on_from_its_checkpoint_with_the_same_bits(zero, expected, tmp_path):
    def first(group):
        engine = make_engine(group, clip=0.5, model=Narrow, loss=narrow_loss, zero=zero)
        train(engine, 3, micro=2)
        return str(engine.save(tmp_path))

    def second(group):
        engine = make_engine(group, clip=0.5, model=Narrow, loss=narrow_loss, zero=zero, seed=8)
        engine.load(tmp_path)
        train(engine, 2, micro=2)
        return digest_of(engine)

    of_all(spread(2, first))

    assert expected.endswith(of_all(spread(3, second)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: model.half(), "sometimes is float16"),
        (lambda model: model.last.bfloat16(), "last.weight is bfloat16, and sometimes is float32"),
    ],
)
def test_weights_of_other_or_of_several_types_are_refused(change, words):
    model = Toy()
    change(model)

    with alone(lanes=LANES) as group, pytest.raises(ConfigError, match=words):
        Engine(model, narrow_loss, torch.optim.SGD, group)

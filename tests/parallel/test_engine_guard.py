"""What must not go on stops every rank at the same step, with one message, and with its weights as they were."""

import threading

import numpy as np
import pytest
import torch
from spread import DEVICE, of_all, spread

from phalanx.errors import ConfigError, NonFiniteGradient, RemoteError, WeightsDiverged
from phalanx.group import alone
from phalanx.parallel import Engine, digest_weights
from phalanx.parallel.engine.digest import DIGEST_STEPS

LANES = 8


def make_engine(group, loss, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1)).to(DEVICE)
    return Engine(
        model, loss, lambda leaves: torch.optim.AdamW([leaf.block for leaf in leaves], lr=0.01), group, **options
    )


def square(model, batch):
    return model(batch).square().mean()


def batches_of(step):
    def batches(lane):
        return [torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * step + lane)).to(DEVICE)]

    return batches


def planted(step, lane, what):
    """Batches as above, with one value replaced in one lane of one step."""

    def batches(number):
        (batch,) = batches_of(step)(number)
        if number == lane:
            batch[1, 2] = what
        return [batch]

    return batches


def digest_of(engine):
    return digest_weights(list(engine.model.state_dict().items()))


@pytest.mark.parametrize("over", ["tcp", "arena"])
@pytest.mark.parametrize("size", [1, 4])
def test_a_value_that_is_not_finite_stops_every_rank_and_is_traced(over, size):
    def work(group):
        engine = make_engine(group, square)
        for step in range(7):
            engine.step(batches_of(step))
        before = digest_of(engine)
        with pytest.raises(NonFiniteGradient) as caught:
            engine.step(planted(7, 5, np.nan), lambda lane: (10 * lane, 10 * lane + 1))
        assert digest_of(engine) == before
        with pytest.raises(NonFiniteGradient):
            engine.step(batches_of(7))
        error = caught.value
        return str(error), error.step, error.rank, error.lane, error.parameter, error.samples, before

    results = spread(size, work, over)

    words, step, rank, lane, parameter, samples, _ = of_all(results)
    assert (step, lane, parameter, samples) == (7, 5, "2.bias", [50, 51])
    assert rank == 5 * size // LANES
    assert f"rank {rank} computed it in lane 5 (samples 50, 51)" in words


def test_the_first_guilty_lane_is_named():
    def work(group):
        engine = make_engine(group, square)

        def batches(lane):
            return planted(0, lane, np.inf if lane in (3, 6) else 1.0)(lane)

        with pytest.raises(NonFiniteGradient) as caught:
            engine.step(batches)
        return caught.value.lane

    assert spread(3, work) == [3] * 3


def test_a_sum_that_overflows_is_told_from_a_lane_that_does():
    def huge(model, batch):
        return model[2].bias.sum() * 2e38 + 0 * square(model, batch)

    def work(group):
        engine = make_engine(group, huge)
        with pytest.raises(NonFiniteGradient, match="although each of them is") as caught:
            engine.step(batches_of(0))
        return caught.value.parameter, caught.value.lane

    assert spread(2, work) == [["2.bias", None]] * 2


@pytest.mark.parametrize(("size", "odd"), [(4, 2), (3, 0)])
def test_one_bit_of_one_weight_on_one_rank_is_found_within_a_turn(size, odd):
    def work(group):
        engine = make_engine(group, square)
        for step in range(3):
            engine.step(batches_of(step))
        if group.rank == odd:
            bits = engine.model[2].weight.data.view(torch.int32)
            bits[0, 3] ^= 1 << 22  # the lowest bits may be rounded away by the next update
        with pytest.raises(WeightsDiverged) as caught:
            [engine.step(batches_of(step)) for step in range(3, 3 + DIGEST_STEPS)]
        return caught.value.rank, caught.value.parameter, str(caught.value)

    results = spread(size, work)

    rank, parameter, words = of_all(results)
    assert (rank, parameter) == (odd, "2.weight")
    assert f"rank {odd} has other weights than rank" in words


@pytest.mark.parametrize("act", ["step", "evaluate"])
@pytest.mark.parametrize("kind", [LookupError, ConfigError])
def test_a_program_that_fails_on_one_rank_ends_all_with_its_traceback(act, kind):
    def work(group):
        def loss(model, batch):
            if group.rank == 1:
                raise kind("no such sample")
            return square(model, batch)

        engine = make_engine(group, loss)
        with pytest.raises(kind if group.rank == 1 else RemoteError, match="no such sample") as caught:
            getattr(engine, act)(batches_of(0))
        return "Traceback" in str(caught.value), group.rank

    assert spread(3, work) == [[True, 0], [False, 1], [True, 2]]


def test_an_optimizer_that_fails_on_one_rank_ends_all():
    def work(group):
        engine = make_engine(group, square)
        if group.rank == 2:
            engine.optimizer.step = lambda: 1 / 0
        with pytest.raises(ZeroDivisionError if group.rank == 2 else RemoteError):
            [engine.step(batches_of(step)) for step in range(2)]

    spread(3, work)


def test_the_thread_of_an_engine_ends_with_its_group():
    with alone(lanes=2) as group:
        engine = make_engine(group, square)
        engine.step(batches_of(0))
        names = [thread.name for thread in threading.enumerate()]

    assert "phalanx-exchange-0" in names
    assert "phalanx-exchange-0" not in [thread.name for thread in threading.enumerate()]


def test_a_group_without_lanes_is_refused():
    with alone() as group, pytest.raises(ConfigError, match="lanes=8"):
        make_engine(group, square)


def test_a_model_without_parameters_or_of_another_type_is_refused():
    with alone(lanes=2) as group:
        with pytest.raises(ConfigError, match="no parameters to train"):
            Engine(torch.nn.ReLU(), square, lambda _: None, group)
        with pytest.raises(ConfigError, match=r"weight is .*bfloat16"):
            Engine(torch.nn.Linear(2, 2).bfloat16(), square, lambda _: None, group)


def test_an_optimizer_that_is_not_element_wise_has_no_state_to_keep():
    class Odd(torch.optim.SGD):
        def step(self):
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["rows"] = torch.zeros(2, 2)

    torch.manual_seed(0)
    with alone(lanes=2) as group:
        engine = Engine(
            torch.nn.Linear(6, 1), square, lambda leaves: Odd([leaf.block for leaf in leaves], lr=1.0), group
        )
        engine.step(batches_of(0))

        with pytest.raises(ConfigError, match="element-wise"):
            engine.state()

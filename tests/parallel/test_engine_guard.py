"""What must not go on stops every rank at the same step, with one message, and with its weights as they were."""

import re
import threading

import numpy as np
import pytest
import torch
from spread import DEVICE, of_all, spread

from phalanx.errors import ConfigError, NonFiniteGradient, RemoteError, WeightsDiverged
from phalanx.group import alone
from phalanx.parallel import Engine, digest_weights

LANES = 8


def make_engine(group, loss, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1))
    model.add_module("frozen", torch.nn.Linear(1, 1).requires_grad_(requires_grad=False))
    model.to(DEVICE)
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


@pytest.mark.parametrize("is_always", [True, False])
def test_a_loss_that_is_not_finite_is_told_from_a_gradient(is_always):
    def work(group):
        calls = []

        def odd(model, batch):
            is_odd = torch.equal(batch, *batches_of(0)(5)) and (is_always or not calls)
            calls.extend([batch] * is_odd)
            return square(model, batch) + (torch.nan if is_odd else 0)

        engine = make_engine(group, odd)
        with pytest.raises(NonFiniteGradient) as caught:
            engine.step(batches_of(0))
        return re.sub(r"process \d+ on \S+", "HERE", str(caught.value)), caught.value.parameter, caught.value.lane

    traced = "the loss is not finite at step 0: rank 1 computed it in lane 5"
    untraced = (
        "the loss is not finite at step 0 but is when it is computed again: suspect the machine, or a random loss"
    )
    words, lane, where = (traced, 5, "; rank 1 is HERE") if is_always else (untraced, None, "")
    assert spread(2, work) == [[f"{words}; weights are those before this step{where}", None, lane]] * 2


def flip_bit(tensor):
    tensor.detach().view(-1)[-1:].view(torch.int32).bitwise_xor_(1)


@pytest.mark.parametrize(
    ("size", "odd", "name"),
    [(4, 2, "2.weight"), (3, 0, "1.running_var"), (3, 1, "frozen.weight"), (3, 2, "0.bias")],
)
def test_one_bit_of_one_rank_is_found_by_the_next_step(size, odd, name):
    def work(group):
        engine = make_engine(group, square)
        for step in range(3):
            engine.step(batches_of(step))
        if group.rank == odd:
            flip_bit(engine.model.state_dict()[name])
        before = digest_of(engine)
        with pytest.raises(WeightsDiverged) as caught:
            engine.step(batches_of(3))
        assert digest_of(engine) == before
        return caught.value.rank, caught.value.parameter, str(caught.value)

    rank, parameter, words = of_all(spread(size, work))

    assert (rank, parameter) == (odd, name)
    assert f"rank {odd} has other weights than rank" in words


@pytest.mark.parametrize(("key", "zero"), [("exp_avg", False), ("step", False), ("exp_avg_sq", True)])
def test_a_comparison_finds_what_steps_do_not_look_at(key, zero):
    """With ZeRO, a rank has nobody to compare its optimizer state with."""

    def work(group):
        engine = make_engine(group, square, zero=zero)
        engine.step(batches_of(0))
        before = engine.compare()
        if group.rank == 1:
            kept = [state for state in engine.optimizer.state.values() if state]
            flip_bit(kept[0][key])
        if zero:
            return engine.compare() != before
        with pytest.raises(WeightsDiverged, match=r"rank 1 .* in the optimizer state of "):
            engine.compare()
        return True

    assert spread(3, work) == [True] * 3


@pytest.mark.slow
def test_the_digest_of_all_state_is_the_same_for_any_number_of_workers():
    def work(group, *, zero):
        engine = make_engine(group, square, zero=zero)
        engine.step(batches_of(0))
        return engine.compare().hex()

    alone_digest = of_all(spread(1, lambda group: work(group, zero=False)))

    assert of_all(spread(3, lambda group: work(group, zero=False))) == alone_digest
    assert of_all(spread(3, lambda group: work(group, zero=True))) == alone_digest


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
        heading, *lines = str(caught.value).splitlines()
        assert all(line.startswith("    ") for line in lines)
        return re.sub(r"process \d+ on \S+:", "HERE:", heading), "    Traceback (most recent call last):" in lines

    theirs = ["rank 1 failed at step 0; rank 1 is HERE:", True]
    assert spread(3, work) == [theirs, ["no such sample", False], theirs]


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
        with pytest.raises(ConfigError, match="weight is float64"):
            Engine(torch.nn.Linear(2, 2).double(), square, lambda _: None, group)


def test_a_norm_over_lanes_is_refused():
    synced = torch.nn.Sequential(torch.nn.Linear(6, 1), torch.nn.SyncBatchNorm(1))

    with alone(lanes=2) as group, pytest.raises(ConfigError, match="1 is a SyncBatchNorm"):
        Engine(synced, square, lambda leaves: torch.optim.SGD([leaf.block for leaf in leaves], lr=1.0), group)


@pytest.mark.parametrize(
    ("choose", "words"),
    [
        (lambda model, _: list(model.parameters()), "bias is not in it"),
        (lambda _, blocks: blocks[:-1], "weight is not in it"),
        (lambda _, blocks: [blocks[0], *blocks], "bias is in it 2 times"),
        (lambda model, blocks: [*blocks, *model.parameters()], "2 of its parameters are none of the leaves"),
    ],
    ids=["parameters", "one too few", "one twice", "parameters too"],
)
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
def test_an_optimizer_that_does_not_take_every_leaf_once_is_refused(choose, words):
    model = torch.nn.Linear(6, 1)

    def make_optimizer(leaves):
        return torch.optim.SGD(choose(model, [leaf.block for leaf in leaves]), lr=1.0)

    with alone(lanes=2) as group, pytest.raises(ConfigError, match=words):
        Engine(model, square, make_optimizer, group)


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

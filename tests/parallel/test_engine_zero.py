"""An engine whose ranks share the optimizer: the same bits, and each keeps its part of the state."""

import pytest
import torch
from engine_play import Toy, digest_of, make_engine, run, train
from spread import of_all, spread

from phalanx.errors import ConfigError, NonFiniteGradient
from phalanx.parallel import StarExchange
from phalanx.train.checkpoint import Checkpoint, load, save_together


class Wide(Toy):
    """Its first matrix has two blocks, and neither blocks nor parameters divide evenly."""

    def __init__(self):
        super().__init__(hidden=27_001)


@pytest.fixture(scope="module")
def full():
    return run(1, steps=12, micro=2, clip=0.5, model=Wide)


@pytest.mark.parametrize(
    ("size", "over"),
    [(3, "tcp"), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, "tcp"), (2, "arena"), (4, "tcp")))],
)
def test_weights_are_those_of_the_full_optimizer(size, over, full):
    assert run(size, over, steps=12, micro=2, clip=0.5, model=Wide, zero=True) == full


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_lanes_that_are_handed_over_as_they_are_give_the_same(size):
    def work(group, *, zero):
        engine = make_engine(group, clip=0.5, model=Wide, zero=zero)
        train(engine, 6)
        return digest_of(engine)

    shared = of_all(spread(size, lambda group: work(group, zero=True), lanes=size))

    assert shared == of_all(spread(size, lambda group: work(group, zero=False), lanes=size))


def test_each_rank_keeps_its_part_of_the_state():
    def work(group):
        engine = make_engine(group, model=Wide, zero=group.size > 1)
        train(engine, 1)
        tensors = [each for kept in engine.optimizer.state.values() for each in kept.values() if each.ndim]
        return sum(each.numel() for each in tensors)

    (whole,) = spread(1, work)

    parts = spread(3, work)

    assert sum(parts) == whole
    assert all(abs(part - whole / 3) <= 2 * 2**18 for part in parts)  # two values for each element of a block


def test_an_optimizer_that_makes_all_its_state_at_once_keeps_only_its_part():
    def work(group):
        engine = make_engine(group, model=Wide, zero=True, optimizer=torch.optim.Adagrad)
        before = len(engine.optimizer.state)
        train(engine, 2)
        return before, len(engine.optimizer.state), digest_of(engine)

    ((whole, _, digest),) = spread(1, work)

    parts = spread(3, work)

    assert sum(before for before, _, _ in parts) == sum(after for _, after, _ in parts) == whole
    assert {each for _, _, each in parts} == {digest}


class Small(Toy):
    """Seven blocks to train."""

    def __init__(self):
        super().__init__()
        self.never.requires_grad_(False)


def test_a_rank_that_owns_nothing_takes_part():
    def work(group):
        engine = make_engine(group, model=Small, zero=True)
        train(engine, 4)
        return len(engine._replica.leaves.own), digest_of(engine)

    results = spread(8, work)

    assert min(own for own, _ in results) == 0
    assert len({digest for _, digest in results}) == 1


@pytest.mark.parametrize("sizes", [(1, 3), (4, 2), pytest.param((3, 3), marks=pytest.mark.slow)])
def test_a_run_that_all_ranks_save_together_goes_on_with_any_number_of_workers(sizes, tmp_path):
    def first(group):
        engine = make_engine(group, clip=0.5, model=Wide, zero=True)
        train(engine, 4)
        state = engine.state()
        save_together(tmp_path, Checkpoint(4, {"model": state["model"]}, {}), state["optimizer"], group)

    def second(group):
        engine = make_engine(group, clip=0.5, model=Wide, zero=True, seed=99)
        found = load(tmp_path / "step-00000004")
        engine.load_state(found.files, found.step)
        train(engine, 4)
        return digest_of(engine)

    def straight(group):
        engine = make_engine(group, clip=0.5, model=Wide)
        train(engine, 8)
        return digest_of(engine)

    spread(sizes[0], first)

    assert of_all(spread(sizes[1], second)) == of_all(spread(1, straight))


@pytest.mark.slow
def test_a_shard_is_loaded_by_its_own_rank_and_refused_by_all_others(tmp_path):
    def save(group):
        engine = make_engine(group, model=Wide, zero=True)
        train(engine, 2)
        torch.save(engine.state(), tmp_path / str(group.rank))
        train(engine, 2)
        return digest_of(engine)

    def resume(group):
        engine = make_engine(group, model=Wide, zero=True, seed=99)
        before = digest_of(engine)
        for rank in set(range(3)) - ({group.rank} if group.size == 3 else set()):
            with pytest.raises(ConfigError, match=rf"shard of rank {rank} of 3, and this is rank {group.rank} of "):
                engine.load_state(torch.load(tmp_path / str(rank)), 2)
        assert digest_of(engine) == before
        if group.size == 3:
            engine.load_state(torch.load(tmp_path / str(group.rank)), 2)
            train(engine, 2)
        return digest_of(engine)

    after = of_all(spread(3, save))

    assert of_all(spread(3, resume)) == after
    assert of_all(spread(2, resume)) == of_all(spread(1, resume))


def test_a_shard_that_is_missing_is_named_and_nothing_is_changed():
    def work(group):
        engine = make_engine(group, model=Wide, zero=True)
        train(engine, 2)
        before = digest_of(engine)
        with pytest.raises(ConfigError, match=r"elements \d+ to \d+ of first.weight.exp_avg are missing"):
            engine.load_state(
                {"model": Wide().state_dict(), "optimizer": {"first.weight.exp_avg[0:5]": torch.zeros(5)}}, 2
            )
        return before == digest_of(engine), engine.state()["optimizer"].keys() > {"first.bias.step"}

    results = spread(2, work)

    assert [is_same for is_same, _ in results] == [True, True]
    assert any(has_state for _, has_state in results)


def test_what_is_not_finite_halts_everybody_with_weights_as_they_were():
    def work(group):
        def spoilt(model, batch):
            return model(batch[0], uses_sometimes=True).square().mean() * (torch.nan if batch[2] == 5 else 1)

        engine = make_engine(group, loss=spoilt, model=Wide, zero=True)
        before = digest_of(engine)
        with pytest.raises(NonFiniteGradient, match="lane 5"):
            train(engine, 1)
        return before == digest_of(engine)

    assert spread(3, work) == [True] * 3


def test_workers_that_can_only_call_out_are_refused():
    class Lonely(StarExchange):
        def __init__(self):
            self.rank, self.size, self.lanes = 0, 2, 8

    with pytest.raises(ConfigError, match="only ranks of our own transports"):
        make_engine(Lonely(), zero=True)

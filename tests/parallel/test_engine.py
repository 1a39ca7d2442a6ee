"""The exact step: one digest for any number of workers, over any transport, and one error for all of them."""

import pytest
import torch
import torch.utils.checkpoint
from engine_play import LANES, WIDTH, Toy, batches_of, digest_of, loss, make_engine, run, train, weighted_loss
from spread import DEVICE, of_all, spread

from phalanx.errors import ConfigError
from phalanx.group import alone
from phalanx.parallel import Engine


@pytest.fixture(scope="module")
def alone_result():
    return run(1, steps=30, micro=2, clip=0.5)


@pytest.mark.parametrize(
    ("size", "over"),
    [(3, "arena"), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, "tcp"), (4, "tcp"), (8, "arena")))],
)
def test_one_digest_for_any_number_of_workers(size, over, alone_result):
    assert run(size, over, steps=30, micro=2, clip=0.5) == alone_result


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_one_lane_a_worker_is_handed_over_as_it_is_and_gives_the_same(size):
    def work(group):
        engine = make_engine(group, clip=0.5)
        reports = train(engine, 10, micro=2)
        losses = [(each.loss.hex(), each.norm.hex()) for each in reports]
        return f"{engine._exchange.reducer.is_borrowing} {losses} {digest_of(engine)}"

    found = [
        of_all(spread(size, work, "arena", lanes=size)),
        of_all(spread(size, work, "tcp", lanes=size)),
        of_all(spread(size, work, lanes=size, hosts=["a", "b", "a"][:size])),
    ]

    assert all(each.startswith(str(DEVICE == "cpu")) for each in found)  # on a GPU they have to be copied anyway
    alone = of_all(spread(1, work, lanes=size))
    assert [each.split()[1:] for each in found] == [alone.split()[1:]] * 3


@pytest.mark.slow
def test_ranks_on_two_hosts_get_the_same(alone_result):
    def work(group):
        engine = make_engine(group, clip=0.5)
        reports = train(engine, 30, micro=2)
        return f"{[(each.loss.hex(), each.norm.hex()) for each in reports]} {digest_of(engine)}"

    assert of_all(spread(4, work, hosts=["a", "a", "b", "b"])) == alone_result


@pytest.mark.parametrize("option", [{"micro": 2}, {"clip": 0.5}, {"seed": 8}, {"optimizer": torch.optim.SGD}])
def test_what_must_change_the_bits_does(option):
    assert run(1, **option) != run(1)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.RMSprop])
def test_other_optimizers_are_as_exact(optimizer):
    assert run(3, "arena", optimizer=optimizer) == run(1, optimizer=optimizer)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", [loss, weighted_loss])
def test_a_plain_loop_over_the_whole_batch_gives_the_same_within_rounding(weighting):
    def model():
        return torch.nn.Sequential(torch.nn.Linear(WIDTH, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1))

    def plain(network, batch):
        return torch.nn.functional.mse_loss(network(batch[0]), batch[1])

    def counted(network, batch):
        return plain(network, batch) * len(batch[0]), len(batch[0])

    torch.manual_seed(3)
    reference = model()
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01)
    with alone(lanes=LANES) as group:
        engine = make_engine(group, seed=3, clip=0.7, model=model, loss=plain if weighting is loss else counted)
        for step in range(50):
            report = engine.step(batches_of(step))
            lanes = [batches_of(step)(lane)[0] for lane in range(LANES)]
            whole = plain(reference, [torch.cat(each) for each in list(zip(*lanes, strict=True))[:2]])
            optimizer.zero_grad()
            whole.backward()
            norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.7)
            optimizer.step()

            assert report.loss == pytest.approx(whole.item(), rel=1e-5)
            assert report.norm == pytest.approx(norm.item(), rel=1e-4)


def test_lanes_count_for_what_they_are_the_total_of():
    """Lanes of 1 to 8 samples, against one loss over all of them."""
    torch.manual_seed(0)
    reference = torch.nn.Linear(WIDTH, 1)
    samples = [torch.randn(lane + 1, WIDTH) for lane in range(LANES)]
    reference(torch.cat(samples)).square().mean().backward()

    with alone(lanes=LANES) as group:
        torch.manual_seed(0)
        model = torch.nn.Linear(WIDTH, 1)

        def total(network, batch):
            return network(batch).square().sum(), len(batch)

        engine = Engine(model, total, lambda leaves: torch.optim.SGD([leaf.block for leaf in leaves], lr=1.0), group)
        before = model.weight.detach().clone()
        engine.step(lambda lane: [samples[lane]])

        torch.testing.assert_close(before - model.weight.detach(), reference.weight.grad)


def test_a_parameter_that_nobody_uses_is_left_alone():
    with alone(lanes=LANES) as group:
        engine = make_engine(group)

        train(engine, 3)

        assert engine.model.never.tolist() == [1.0, 1.0, 1.0]  # weight decay would have changed it
        assert engine.model.sometimes.tolist() != [1.0] * 40
        assert not any(key.startswith("never") for key in engine.state()["optimizer"])


def test_buffers_are_the_mean_over_lanes_and_counters_are_lane_0s():
    with alone(lanes=LANES) as group:
        engine = make_engine(group)
        before = [Toy() for _ in range(LANES)]
        for lane, model in enumerate(before):
            model.load_state_dict(engine.model.state_dict())
            loss(model, batches_of(0)(lane)[0])
        expected = torch.stack([model.norm.running_mean for model in before]).mean(0)

        train(engine, 1)

        torch.testing.assert_close(engine.model.norm.running_mean, expected)
        assert int(engine.model.norm.num_batches_tracked) == 1


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(3, 1), (2, 4)])
def test_a_run_goes_on_with_another_number_of_workers(sizes, tmp_path):
    def first(group):
        engine = make_engine(group, clip=0.5)
        train(engine, 15)
        if group.rank == 0:
            torch.save(engine.state(), tmp_path / "state")

    def second(group):
        engine = make_engine(group, clip=0.5, seed=99)
        engine.load_state(torch.load(tmp_path / "state"), 15)
        reports = train(engine, 15)
        return f"{[(each.loss.hex(), each.norm.hex()) for each in reports]} {digest_of(engine)}"

    def straight(group):
        engine = make_engine(group, clip=0.5)
        reports = train(engine, 30)[15:]
        return f"{[(each.loss.hex(), each.norm.hex()) for each in reports]} {digest_of(engine)}"

    spread(sizes[0], first)

    assert of_all(spread(sizes[1], second)) == of_all(spread(1, straight))


def test_a_loss_over_other_data_is_the_same_for_any_number_of_workers():
    def work(group):
        engine = make_engine(group)
        train(engine, 2)
        return engine.evaluate(batches_of(100, micro=3)).hex(), engine.model.training

    assert of_all(spread(3, work)) == of_all(spread(1, work))


def test_random_numbers_of_the_caller_are_not_disturbed():
    with alone(lanes=LANES) as group:
        engine = make_engine(group)
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)

        train(engine, 1)

        assert torch.equal(torch.rand(3), expected)


def test_a_wish_to_stop_reaches_every_rank():
    def work(group):
        engine = make_engine(group)
        reports = [engine.step(batches_of(step), wants_stop=step == 1 and group.rank == 1) for step in range(2)]
        return [each.wants_stop for each in reports]

    assert spread(2, work) == [[False, True]] * 2


def test_what_another_backward_has_left_is_no_part_of_a_step():
    results = []
    for has_leftovers in (False, True):
        with alone(lanes=LANES) as group:
            engine = make_engine(group)
            if has_leftovers:
                engine.model.never.grad = torch.ones(3)
                engine.model.last.weight.grad = torch.ones(1, 40)
            train(engine, 2)
            results.append(digest_of(engine))

    assert results[0] == results[1]


def test_an_evaluation_leaves_every_module_as_it_was():
    with alone(lanes=LANES) as group:
        engine = make_engine(group)
        engine.model.norm.eval()

        engine.evaluate(batches_of(0))

        assert engine.model.training
        assert engine.model.drop.training
        assert not engine.model.norm.training


@pytest.mark.parametrize("lanes", [3, 7])
def test_a_buffer_that_no_lane_changes_stays_as_it_is(lanes):
    class Constant(torch.nn.Linear):
        def __init__(self):
            super().__init__(WIDTH, 1)
            self.register_buffer("table", torch.randn(1000))

    def plain(model, batch):
        return model(batch[0]).square().mean()

    with alone(lanes=lanes) as group:
        engine = make_engine(group, model=Constant, loss=plain)
        before = engine.model.table.clone()

        train(engine, 2)

        assert torch.equal(engine.model.table, before)


def test_lanes_that_count_nothing_have_no_mean():
    with alone(lanes=2) as group, pytest.raises(ConfigError, match="all lanes of step 0 count 0"):
        make_engine(group, loss=lambda model, batch: (loss(model, batch) * 0, 0)).step(batches_of(0))


def test_two_gradients_in_one_backward_are_refused():
    class Twice(torch.nn.Linear):
        def forward(self, x):
            once = torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=True)
            return once + torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=True)

    def plain(model, batch):
        return model(batch[0].requires_grad_()).square().mean()

    with alone(lanes=2) as group:
        engine = make_engine(group, model=lambda: Twice(WIDTH, 1), loss=plain)

        with pytest.raises(ConfigError, match="got a second gradient in one step"):
            engine.step(batches_of(0))

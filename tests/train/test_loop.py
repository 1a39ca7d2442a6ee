import pytest
import torch
from tiny import CPU, Notes, make_config, training

from phalanx.errors import ConfigError
from phalanx.parallel import digest_weights
from phalanx.train.checkpoint import Checkpoint
from phalanx.train.config import Device
from phalanx.train.data import open_corpus
from phalanx.train.loop import LaneBatches, choose_device, choose_gpu, make_loss, make_model
from phalanx.train.model import loss
from phalanx.train.schedule import learning_rate


@pytest.fixture
def config(tmp_path):
    return make_config(tmp_path)


def weights_of(model):
    return digest_weights(list(model.state_dict().items()))


class TestModel:
    def test_the_seed_decides_the_first_weights(self, config, tmp_path):
        other = make_config(tmp_path, "train.seed=1")

        first, second, third = (weights_of(make_model(each, 256, CPU)) for each in (config, config, other))

        assert first == second != third

    @pytest.mark.parametrize("autocast", ["false", "true"])
    def test_the_loss_is_a_total_over_sequences_in_f32(self, tmp_path, autocast):
        config = make_config(tmp_path, "model.dropout=0", f"train.autocast={autocast}")
        model = make_model(config, 256, CPU)
        batch = torch.randint(256, (3, 17), generator=torch.Generator().manual_seed(0))

        total, count = make_loss(config, CPU)(model, batch)

        exact = loss(model, batch) * 3
        assert (count, total.dtype) == (3, torch.float32)
        assert (total.item() == exact.item()) is (autocast == "false")
        assert total.item() == pytest.approx(exact.item(), rel=1e-2)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_a_gpu_must_be_there_only_if_it_is_asked_for(self):
        chosen = [choose_device(device) for device in (Device.AUTO, Device.CPU)]

        assert chosen == [CPU, CPU]
        with pytest.raises(ConfigError, match=r"^torch finds no GPU here: pass --device cpu$"):
            choose_device(Device.CUDA)


class TestLanes:
    def test_a_lane_has_its_sequences_in_as_many_batches_as_are_accumulated(self, config):
        lanes = LaneBatches(config, open_corpus(config.data), CPU)

        batches = lanes.batches(step=3, lane=1)

        rows = torch.from_numpy(lanes.corpus.train.batch(lanes.samples(3, 1)))
        assert [tuple(batch.shape) for batch in batches] == [(1, 17), (1, 17)]
        assert torch.equal(torch.cat(batches), rows)

    def test_the_lanes_of_a_step_share_a_batch_of_different_sequences(self, config):
        lanes = LaneBatches(config, open_corpus(config.data), CPU)

        samples = [number for lane in range(4) for number in lanes.samples(5, lane)]

        assert len(samples) == len(set(samples)) == config.train.batch

    @pytest.mark.parametrize(("batches", "expected"), [(1, 8), (1000, 12)])  # there are 12 held out
    def test_the_lanes_of_an_evaluation_share_what_is_held_out_as_far_as_it_goes(self, tmp_path, batches, expected):
        config = make_config(tmp_path, f"train.eval_batches={batches}")
        lanes = LaneBatches(config, open_corpus(config.data), CPU)

        rows = [row for lane in range(4) for batch in lanes.held_out(lane) for row in batch]

        held_out = lanes.corpus.held_out
        assert torch.equal(torch.stack(rows), torch.from_numpy(held_out.batch(range(expected))))

    def test_a_lane_for_which_nothing_is_held_out_has_no_batch(self, tmp_path):
        config = make_config(tmp_path, "data.held_out=0.01")  # two sequences for four lanes
        lanes = LaneBatches(config, open_corpus(config.data), CPU)

        counts = [len(lanes.held_out(lane)) for lane in range(4)]

        assert sorted(counts) == [0, 0, 1, 1]


class TestTrainer:
    def test_every_step_is_told_of_and_evaluated_on_schedule_and_at_the_end(self, config):
        notes = Notes()

        with training(config) as trainer:
            is_complete = trainer.run(notes)

        assert is_complete
        assert [record.step for record in notes.records] == list(range(6))
        assert [record.eval_loss is not None for record in notes.records] == [False, False, False, True, False, True]
        assert notes.lasts == [False] * 5 + [True]

    def test_every_step_has_the_learning_rate_of_the_schedule(self, config):
        notes = Notes()

        with training(config) as trainer:
            trainer.run(notes)

        train = config.train
        expected = [learning_rate(step, peak=train.lr, least=train.min_lr, warmup=2, steps=6) for step in range(6)]
        assert [record.lr for record in notes.records] == expected
        assert [group["lr"] for group in trainer.engine.optimizer.param_groups] == [expected[-1]] * 2

    @pytest.mark.parametrize("step", [1, 3])  # between evaluations, and at one
    def test_a_wish_to_stop_makes_a_step_the_last(self, config, step):
        notes = Notes()

        with training(config) as trainer:
            assert trainer.run(notes, lambda: len(notes.records) == step)

        assert notes.has_concluded
        assert notes.lasts == [False] * step + [True]
        assert notes.records[-1].eval_loss is not None

    @pytest.mark.slow
    def test_going_on_from_a_checkpoint_gives_the_bits_of_one_run(self, config):
        whole, first, second = Notes(), Notes(), Notes()

        with training(config) as trainer:
            trainer.run(whole)
            expected = weights_of(trainer.engine.model)
        with training(config) as trainer:
            trainer.run(first, lambda: len(first.records) == 2)
            state = {
                name: {key: each.clone() for key, each in part.items()} for name, part in trainer.engine.state().items()
            }
        with training(config, Checkpoint(3, state, {})) as trainer:
            trainer.run(second)
            found = weights_of(trainer.engine.model)

        assert first.bits + second.bits == whole.bits
        assert found == expected

    def test_only_matrices_are_pulled_towards_zero(self, config):
        with training(config) as trainer:
            decaying, others = trainer.engine.optimizer.param_groups

        total = sum(each.numel() for each in trainer.engine.model.parameters())
        norms = sum(each.numel() for each in trainer.engine.model.parameters() if each.ndim == 1)
        assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
        assert sum(each.numel() for each in others["params"]) == norms
        assert sum(each.numel() for each in decaying["params"]) == total - norms

    def test_a_keeper_that_cannot_write_ends_the_run(self, config):
        class FullDisk:
            def keep(self, *_, **__):
                raise ConfigError("there is no room")

        with training(config) as trainer, pytest.raises(ConfigError, match=r"^there is no room$"):
            trainer.run(FullDisk())

        assert trainer.engine.step_number == 1


def test_workers_of_a_machine_take_turns_among_its_gpus_unless_one_is_wanted():
    assert [choose_gpu(None, local_rank, 2) for local_rank in range(4)] == [0, 1, 0, 1]
    assert [choose_gpu(1, local_rank, 2) for local_rank in range(4)] == [1] * 4
    with pytest.raises(ConfigError, match="no GPU 2 here: pass --device cuda:0 to cuda:1"):
        choose_gpu(2, 0, 2)

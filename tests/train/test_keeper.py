import json
import math

import msgspec
import numpy as np
import pytest
import torch
from run_records import make_step
from tiny import CPU, make_config, training

from phalanx.errors import ConfigError, WeightsDiverged
from phalanx.parallel import digest_weights
from phalanx.testing import World
from phalanx.train.checkpoint import Best
from phalanx.train.data import open_corpus
from phalanx.train.keeper import Keeper
from phalanx.train.log import read_steps
from phalanx.train.loop import Trainer
from phalanx.train.record import Result
from phalanx.train.rundir import RunDir


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path / "run", "", {})


def keep(run, config, records, *, is_stopped=False, best=None):
    """Keep steps, of which the last is the last if the run is stopped; the keeper, and the engine that it looks at."""
    corpus = open_corpus(config.data)
    with training(config) as trainer, Keeper(run, config, corpus, trainer.exchange, best) as keeper:
        for record in records:
            keeper.keep(record, trainer.engine, is_last=is_stopped and record is records[-1])
            trainer.engine.step_number = record.step + 1
    return keeper, trainer.engine


def facts_of(run, step):
    return json.loads((run.checkpoints / f"step-{step:08}" / "facts.json").read_bytes())


def kept(run):
    return sorted(int(path.name.removeprefix("step-")) for path in run.checkpoints.iterdir())


def test_every_step_is_logged_and_checkpoints_come_on_schedule(run, tmp_path):
    records = [make_step(step) for step in range(5)]

    keep(run, make_config(tmp_path, "run.keep=9"), records)

    found = read_steps(run.steps)
    assert [msgspec.structs.replace(record, state_digest=None) for record in found] == records
    assert [record.step for record in found if record.state_digest] == [1, 3]
    assert kept(run) == [2, 4]


@pytest.mark.parametrize("eval_loss", [None, 2.0])
def test_the_last_step_is_always_kept(run, tmp_path, eval_loss):
    records = [make_step(0), make_step(1), make_step(2, eval_loss=eval_loss)]

    keep(run, make_config(tmp_path, "train.eval_every=1"), records, is_stopped=True)

    assert 3 in kept(run)


def test_the_best_checkpoint_outlives_later_ones(run, tmp_path):
    losses = [None, 3.0, None, 2.0, None, 2.5, None, 2.6]
    records = [make_step(step, eval_loss=loss) for step, loss in enumerate(losses)]

    keep(run, make_config(tmp_path), records)

    assert kept(run) == [4, 8]
    assert facts_of(run, 8)["best"] == {"step": 4, "eval_loss": 2.0}


def test_a_run_that_goes_on_knows_its_best(run, tmp_path):
    keep(run, make_config(tmp_path), [make_step(0), make_step(1, eval_loss=3.0)], best=Best(1, 2.0))

    assert facts_of(run, 2)["best"] == {"step": 1, "eval_loss": 2.0}


def test_an_evaluation_that_is_not_finite_is_no_best(run, tmp_path):
    keep(run, make_config(tmp_path), [make_step(0), make_step(1, eval_loss=math.nan)])

    assert facts_of(run, 2)["best"] is None


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("what", ["model", "optimizer"])
def test_what_differs_between_ranks_gets_into_no_checkpoint(run, tmp_path, odd, what):
    config = make_config(tmp_path)

    class Disturbed(Keeper):
        def keep(self, record, engine, *, is_last):
            if (record.step, self._exchange.rank) == (3, odd):  # the second checkpoint is due
                state = [leaf.block for leaf in engine._replica.leaves.own]
                if what == "optimizer":
                    state = [engine.optimizer.state[state[0]]["exp_avg"]]
                state[0].detach().view(torch.int32)[5] ^= 1
            return super().keep(record, engine, is_last=is_last)

    def work(group):
        corpus = open_corpus(config.data)
        trainer = Trainer(config, corpus, group, CPU)
        with Disturbed(run, config, corpus, group) as keeper, pytest.raises(WeightsDiverged) as caught:
            trainer.run(keeper)
        return str(caught.value)

    words = World(3, "arena", lanes=4, processes=True).run(work)

    assert kept(run) == [2]
    assert [record.step for record in read_steps(run.steps)] == [0, 1, 2]
    assert words == [words[0]] * 3
    assert f"rank {odd} has other weights" in words[0]
    assert words[0].endswith("; the last checkpoint from before it is that of step 2")


class TestConclusion:
    def test_figures_and_a_sample_are_written(self, run, tmp_path):
        config = make_config(tmp_path)
        keeper, engine = keep(run, config, [make_step(0), make_step(1, eval_loss=2.0)])

        result = keeper.conclude(engine)

        assert msgspec.json.decode(run.result.read_bytes(), type=Result) == result
        assert (result.steps, result.loss, result.eval_loss, result.workers) == (2, 2.5, 2.0, 2)
        assert result.digest == digest_weights(list(engine.model.state_dict().items()))
        assert result.unigram_entropy == open_corpus(config.data).unigram_entropy()
        assert len(run.sample.read_bytes()) == 164
        assert run.sample.read_bytes().startswith(b"def ")

    def test_tokens_that_are_no_bytes_are_not_written_as_text(self, run, tmp_path):
        path = tmp_path / "tokens.bin"
        path.write_bytes(np.arange(4000, dtype="<u2").tobytes())
        config = make_config(tmp_path, f"data.path={path}")
        keeper, engine = keep(run, config, [make_step(0), make_step(1)])

        keeper.conclude(engine)

        assert not run.sample.exists()
        assert facts_of(run, 2)["is_bytes"] is False

    @pytest.mark.parametrize("name", ["result", "sample"])
    def test_what_cannot_be_written_is_a_sentence(self, run, tmp_path, name):
        keeper, engine = keep(run, make_config(tmp_path), [make_step(0)])
        getattr(run, name).mkdir()

        with pytest.raises(ConfigError, match=f"^cannot write the result of the run to {run.path}: Is a directory; "):
            keeper.conclude(engine)

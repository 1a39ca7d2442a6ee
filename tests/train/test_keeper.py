import math

import msgspec
import numpy as np
import pytest
from run_records import make_step
from tiny import make_config, training

from phalanx.errors import ConfigError
from phalanx.parallel import digest_weights
from phalanx.train.checkpoint import load
from phalanx.train.data import open_corpus
from phalanx.train.keeper import Best, Keeper, Result
from phalanx.train.log import read_steps
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
    return keeper, trainer.engine


def kept(run):
    return sorted(int(path.name.removeprefix("step-")) for path in run.checkpoints.iterdir())


def test_every_step_is_logged_and_checkpoints_come_on_schedule(run, tmp_path):
    records = [make_step(step) for step in range(5)]

    keep(run, make_config(tmp_path, "run.keep=9"), records)

    assert read_steps(run.steps) == records
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
    assert load(run.checkpoints / "step-00000008").facts["best"] == {"step": 4, "eval_loss": 2.0}


def test_a_run_that_goes_on_knows_its_best(run, tmp_path):
    keep(run, make_config(tmp_path), [make_step(0), make_step(1, eval_loss=3.0)], best=Best(1, 2.0))

    assert load(run.checkpoints / "step-00000002").facts["best"] == {"step": 1, "eval_loss": 2.0}


def test_an_evaluation_that_is_not_finite_is_no_best(run, tmp_path):
    keep(run, make_config(tmp_path), [make_step(0), make_step(1, eval_loss=math.nan)])

    assert load(run.checkpoints / "step-00000002").facts["best"] is None


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
        assert load(run.checkpoints / "step-00000002").facts["is_bytes"] is False

    @pytest.mark.parametrize("name", ["result", "sample"])
    def test_what_cannot_be_written_is_a_sentence(self, run, tmp_path, name):
        keeper, engine = keep(run, make_config(tmp_path), [make_step(0)])
        getattr(run, name).mkdir()

        with pytest.raises(ConfigError, match=f"^cannot write the result of the run to {run.path}: Is a directory; "):
            keeper.conclude(engine)

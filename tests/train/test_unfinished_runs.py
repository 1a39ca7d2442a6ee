"""Runs that were killed between their last checkpoint and their result, or whose directory went away."""

import shutil

import msgspec
import pytest
from hostile_play import STEPS, copy_run, make_run
from run_records import make_step
from tiny import training

from phalanx.errors import ConfigError
from phalanx.parallel import digest_weights
from phalanx.train.checkpoint import load_for_resume
from phalanx.train.data import open_corpus
from phalanx.train.keeper import Keeper
from phalanx.train.log import StepLog, cut, read_steps
from phalanx.train.rundir import read_config


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("made"), workers=1)


@pytest.fixture
def run(made, tmp_path):
    return copy_run(made, tmp_path)


def conclude(run):
    """What a worker does with a run that has taken all its steps."""
    config = read_config(run.config)
    corpus = open_corpus(config.data)
    start = load_for_resume(run.checkpoints, STEPS, config.model)
    with training(config, start) as trainer, Keeper(run, config, corpus, trainer.exchange) as keeper:
        assert trainer.run(keeper)
        return run.read_result(), start


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_result_is_concluded_without_a_step(run):
    before = read_steps(run.steps)

    result, start = conclude(run)

    assert read_steps(run.steps) == before
    assert (result.steps, result.loss, result.eval_loss) == (STEPS, before[-1].loss, before[-1].eval_loss)
    assert result.digest == digest_weights(list(start.files["model"].items()))


def test_a_run_whose_log_lacks_the_last_step_is_not_concluded(run):
    cut(run.steps, STEPS - 1)

    with pytest.raises(ConfigError, match=r"steps.jsonl does not end with step 3, .* checkpoint with --from-step$"):
        conclude(run)

    assert not run.result.exists()


def test_a_result_is_there_as_a_whole_or_not_at_all(run, monkeypatch):
    result, _ = conclude(run)
    first = run.result.read_bytes()
    (run.path / ".result.json.new").mkdir()

    with pytest.raises(OSError, match="Is a directory"):
        run.write_result(msgspec.structs.replace(result, steps=9))

    assert run.result.read_bytes() == first


def test_a_checkpoint_of_another_model_is_not_resumed_from(run):
    config = read_config(run.config, ["model.hidden=32"])

    with pytest.raises(ConfigError, match=r"is of another model than the one in the config of the run; no earlier"):
        load_for_resume(run.checkpoints, STEPS, config.model)


@pytest.mark.parametrize("go_away", [shutil.rmtree, lambda path: path.rename(path.with_name("elsewhere"))])
def test_a_log_that_goes_away_is_noticed_at_the_next_step(run, go_away):
    with StepLog(run.steps) as log:
        log.append(make_step(STEPS))
        go_away(run.path)

        with pytest.raises(ConfigError, match=r"^cannot write step 5 to .*: it was removed or moved while the run"):
            log.append(make_step(STEPS + 1))

    assert not run.path.exists()

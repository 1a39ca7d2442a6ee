import dataclasses
import math

import pytest
import torch
from tiny import CPU, Notes, make_config, training

from phalanx.errors import ConfigError, NonFiniteGradient
from phalanx.parallel import seed_of
from phalanx.train.bundle import reproduce, write_bundle
from phalanx.train.checkpoint import Checkpoint, load, save
from phalanx.train.config_text import parse_config
from phalanx.train.loop import make_loss, make_model
from phalanx.train.rundir import RunDir


@pytest.fixture
def halted(tmp_path):
    """The error of a run in which one letter of one sequence cannot be computed with, and its bundle."""
    config = make_config(tmp_path)
    run = RunDir.create(tmp_path / "run", "", {})
    with training(config) as trainer:
        place = trainer.lanes.samples(2, 3)[1] * config.data.context + 5
    text = (tmp_path / "text.txt").read_text(encoding="utf-8")
    config = make_config(tmp_path, text=text[:place] + "~" + text[place + 1 :])
    with training(config) as trainer:
        with torch.no_grad():
            trainer.engine.model.embedding.weight[ord("~")] = torch.inf
        with pytest.raises(NonFiniteGradient) as caught:
            trainer.run(Notes())
        return caught.value, write_bundle(run, trainer, caught.value)


def test_a_bundle_repeats_what_halted_the_run(halted):
    error, bundle = halted

    found = reproduce(bundle)

    assert (found.step, found.lane, found.samples) == (error.step, error.lane, error.samples) == (2, 3, error.samples)
    assert error.parameter in found.parameters
    assert [math.isfinite(loss) for loss in found.losses] == [True, False]


def test_a_bundle_has_the_random_numbers_of_its_lane(halted):
    error, bundle = halted
    whole = load(bundle)
    config = parse_config(whole.facts["config"])
    model = make_model(config, 256, CPU)
    model.load_state_dict(whole.files["model"])
    torch.manual_seed(seed_of(config.train.seed, error.step, error.lane))
    with torch.no_grad():
        expected, _ = make_loss(config, CPU)(model, whole.files["batches"]["0"])

    found = reproduce(bundle)

    assert found.losses[0] == expected.item()


def test_a_bundle_counts_what_is_not_finite(halted):
    _, bundle = halted

    found = reproduce(bundle)

    assert found.parameters["final_norm.weight"] == (16, 16)
    assert all(0 < bad <= size for bad, size in found.parameters.values())


def test_a_lane_that_is_well_here_has_no_such_parameters(halted, tmp_path):
    _, bundle = halted
    whole = load(bundle)
    weights = {name: torch.nan_to_num(tensor, posinf=0.0) for name, tensor in whole.files["model"].items()}
    mended = save(tmp_path / "mended", dataclasses.replace(whole, files={**whole.files, "model": weights}))

    found = reproduce(mended)

    assert found.parameters == {}


def test_a_checkpoint_is_no_bundle(tmp_path):
    path = save(tmp_path, Checkpoint(1, {"model": {"a": torch.zeros(1)}}, {}))

    with pytest.raises(ConfigError, match=r"is a checkpoint, not a bundle: name a folder in the halts of a run$"):
        reproduce(path)


def test_the_run_itself_is_no_bundle(tmp_path):
    with pytest.raises(ConfigError, match=r"/run is not a bundle: name a folder in the halts of a run$"):
        reproduce(tmp_path / "run")

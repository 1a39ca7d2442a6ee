"""A gradient that is not finite: all stop at one step with one message, and the lane can be computed again."""

import re
import shutil
from dataclasses import replace

import pytest
import torch
from training import CONFIG, LIMIT_S, bits_of, call, checkpoints_of, make_text, train, write_config

from phalanx.data import samples_of
from phalanx.train.checkpoint import load, save
from phalanx.train.config_text import parse_config
from phalanx.train.data import open_corpus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]  # real processes, all of them

STEP, LANE, RANK = 7, 5, 2  # lanes 4 and 5 of 8 are those of rank 2 of 4
RARE = "~"


def samples(config):
    """The numbers of the sequences that the lane has at that step."""
    train, length = config.train, len(open_corpus(config.data).train)
    return samples_of(STEP, LANE, lanes=train.lanes, batch=train.batch, length=length, seed=train.seed)


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    """A run of five steps whose weights for a letter, which only one sequence of the lane has, are not usable."""
    folder = tmp_path_factory.mktemp("poisoned")
    file = write_config(folder)
    config = parse_config(CONFIG.format(text=folder / "text.txt"))
    place = samples(config)[0] * config.data.context + config.data.context // 2
    text = make_text()
    write_config(folder, text[:place] + RARE + text[place + 1 :])
    run = folder / "run"
    train(file, "--steps", 5, "--set", "model.tied=false", "--set", "run.checkpoint_every=1", "--run-dir", run)
    good = load(run / "checkpoints" / "step-00000005")
    weights = good.files["model"]["embedding.weight"].clone()
    weights[ord(RARE)] = torch.inf
    model = {**good.files["model"], "embedding.weight": weights}
    save(run / "checkpoints", replace(good, files={**good.files, "model": model}))
    return run, samples(config)


@pytest.mark.parametrize("transport", ["auto", "star"])  # with star, workers do not know their ranks before they join
def test_all_ranks_stop_at_the_step_with_one_message_and_the_bundle_repeats_it(poisoned, tmp_path, transport):
    original, (first, second) = poisoned
    run = shutil.copytree(original, tmp_path / "run")

    ended = call("train", "--resume", run, "--steps", 10, "--workers", 4, "--transport", transport)

    said = {rank: re.findall(rf"\[rank {rank}\] (phalanx\.errors.*)", ended.stderr) for rank in range(4)}
    assert ended.returncode == 1
    assert said == dict.fromkeys(range(4), said[0])
    pattern = (
        rf"phalanx\.errors\.NonFiniteGradient: the gradient of (\S+) is not finite at step {STEP}: "
        rf"rank {RANK} computed it in lane {LANE} \(samples {first}, {second}\); weights are those before this step; "
        rf"rank {RANK} is process \d+ on \S+"
    )
    match = re.fullmatch(pattern, *said[0])
    assert match, said[0]
    assert f"\nphalanx: rank {RANK} failed first: " in ended.stderr
    assert ended.stderr.endswith(f"phalanx train: resume from the last checkpoint with --resume {run}\n")
    # The weights are those of the step before.
    bundle = run / "halts" / f"step-{STEP:08}"
    assert f"[rank {RANK}] to look into it: phalanx reproduce {bundle}\n" in ended.stderr
    assert bits_of(run)[-1][0] == STEP - 1
    assert checkpoints_of(run)[-1] == STEP
    kept, bundled = (load(path).files["model"] for path in (run / "checkpoints" / f"step-{STEP:08}", bundle))
    assert all(torch.equal(kept[name], bundled[name]) for name in kept)
    # It can be repeated on one worker.
    again = call("reproduce", bundle)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.startswith(f"step {STEP}, lane {LANE}, samples {first}, {second}\n")
    assert f"\n  {match[1]}: " in again.stdout


def test_a_checkpoint_is_no_bundle(poisoned):
    run, _ = poisoned

    ended = call("reproduce", run / "checkpoints" / "step-00000005")

    assert ended.returncode == 2
    assert ended.stderr.endswith("is a checkpoint, not a bundle: name a folder in the halts of a run\n")

"""What cannot be trained: one sentence, before anything has begun, and nothing is left behind or changed."""

import json
import shutil
import subprocess
import sys

import pytest
from launching import environ
from training import LIMIT_S, bits_of, call, checkpoints_of, train, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]  # real processes, all of them


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of 20 steps with checkpoints at 10, 15 and 20."""
    config = write_config(tmp_path_factory.mktemp("made"))
    train(config, "--steps", 20, "--set", "train.eval_every=20", "--run-dir", config.parent / "run")
    return config.parent / "run"


@pytest.fixture
def run(made, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(made, tmp_path / "run")


def refusal(*arguments):
    """What a run that cannot be says on stderr; it says nothing else, and its status is 2."""
    ended = call("train", *arguments)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended
    return ended.stderr.removeprefix("phalanx: ").removesuffix("\n")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("data.path=/none/at/all", "there is no /none/at/all: change data.path"),
        ("train.stepps=3", "a config has no train.stepps: did you mean train.steps?"),
        ("train.lr=fast", "train.lr must be a number, not 'fast'"),
        ("train.lr=0", "train.lr must be greater than 0, not 0"),
        ("run.workers=9", "8 lanes are too few for 9 workers: raise train.lanes or lower run.workers"),
        (
            "train.batch=20",
            "train.batch 20 cannot be cut evenly into 8 lanes of 2 micro-batches: make it a multiple of 16",
        ),
        ("run.directory=/proc/none/run", "cannot write to /proc/none/run: No such file or directory"),
        ("data.context=5000", "the held-out part of {text} has 1000 tokens and a sequence needs 5001"),
    ],
)
def test_a_config_that_cannot_be_is_refused(tmp_path, setting, words):
    config = write_config(tmp_path)
    run = tmp_path / "run"

    said = refusal(config, "--run-dir", run, "--set", setting)

    assert said.startswith(words.format(text=tmp_path / "text.txt"))
    assert not run.exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.txt", b"", "there is no text in {path}: put some there or change data.path"),
        ("short.txt", b"a few words", "the training part of {path} has 11 tokens and a sequence needs 33: "),
        ("odd.bin", b"odd", "{path} has 3 bytes, which is not a whole number of uint16 tokens: "),
        ("folder", None, "there is no text in {path}: put some there or change data.path"),
    ],
)
def test_data_from_which_nothing_can_be_learnt_is_refused(tmp_path, name, content, words):
    config, data, run = write_config(tmp_path), tmp_path / name, tmp_path / "run"
    data.mkdir() if content is None else data.write_bytes(content)

    said = refusal(config, "--set", f"data.path={data}", "--run-dir", run)

    assert said.startswith(words.format(path=data))
    assert not run.exists()


def test_a_directory_with_something_in_it_is_not_used(tmp_path):
    config = write_config(tmp_path)

    said = refusal(config, "--run-dir", tmp_path)

    assert (
        said == f"{tmp_path} is not empty: name another directory, or continue the run in it with --resume {tmp_path}"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml", "text.txt"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "this run is complete: its 20 steps are taken; pass more --steps to continue"),
        (["--set", "train.lr=0.1"], "train.lr=0.1 would change what this run is: with --resume only run.*"),
        (["--seed", "3"], "train.seed=3 would change what this run is: "),
        (["--run-dir", "other"], "this run is in {run}: leave out --run-dir"),
        (
            ["--steps", "30", "--from-step", "7"],
            "there is no checkpoint of step 7 in {run}/checkpoints: pass --from-step",
        ),
        (["--steps", "30", "--set", "data.path=/none"], "there is no /none: change data.path"),
        (["--steps", "30", "--set", "data.path={run}/steps.jsonl"], "{run}/steps.jsonl is not the text that this run"),
    ],
)
def test_a_run_that_cannot_go_on_stays_as_it_is(run, options, words):
    before = (run / "config.toml").read_text(encoding="utf-8"), bits_of(run), checkpoints_of(run)

    said = refusal("--resume", run, *(option.format(run=run) for option in options))

    assert said.startswith(words.format(run=run))
    assert ((run / "config.toml").read_text(encoding="utf-8"), bits_of(run), checkpoints_of(run)) == before


def test_what_is_no_run_cannot_go_on(tmp_path):
    said = refusal("--resume", tmp_path)

    assert said == f"there is no run in {tmp_path}: name a directory that phalanx train has made"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "does not have the hash in manifest.json"),
        (lambda content: content[:-1], "bytes instead of the"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_goes_on(made, run, damage, words):
    file = run / "checkpoints" / "step-00000020" / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))

    said = refusal("--resume", run, "--steps", 25)
    result = train("--resume", run, "--steps", 25, "--from-step", 15)

    assert said.startswith(f"checkpoint {file.parent} is damaged: model.safetensors ")
    assert words in said
    assert said.endswith(f"; step-00000015 is complete: resume from it with --resume {run} --from-step 15")
    assert (result["steps"], bits_of(run)[:15]) == (25, bits_of(made)[:15])


def test_a_run_that_was_killed_before_it_wrote_its_result_is_concluded(made, run):
    expected = json.loads((run / "result.json").read_bytes())
    (run / "result.json").unlink()
    before = bits_of(run), checkpoints_of(run)

    result = train("--resume", run)

    assert (result["digest"], result["loss"]) == (expected["digest"], expected["loss"])
    assert (bits_of(run), checkpoints_of(run)) == before


@pytest.mark.parametrize("options", [["--help"], ["--show-config"], ["--workers", "9"]])
def test_what_trains_nothing_does_not_import_torch(options):
    program = (
        "import sys\nfrom phalanx.cli import main\n"
        "try:\n    main()\nfinally:\n    assert not {'torch', 'matplotlib'} & sys.modules.keys()"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program, "train", *options], capture_output=True, text=True, check=False, env=environ()
    )

    assert "AssertionError" not in ended.stderr
    assert ended.returncode == (2 if "--workers" in options else 0)

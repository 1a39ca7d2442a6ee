"""What people see of a run, and what they can do with it afterwards."""

import os
import pty
import re
import subprocess

import numpy as np
import pytest
import torch
from launching import PHALANX, environ
from training import LIMIT_S, call, checkpoints_of, read_until, train, training, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]  # real processes, all of them


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def ended(config):
    """A run that has come to its end, without a terminal."""
    return call("train", config, "--workers", 2, "--run-dir", config.parent / "run")


@pytest.fixture(scope="module")
def run(ended, config):
    """Where it is kept."""
    return config.parent / "run"


def read_terminal(descriptor):
    """All that is written to a terminal, until nobody has it open any longer."""
    parts = []
    try:
        while part := os.read(descriptor, 2**16):
            parts.append(part)
    except OSError:  # how Linux says that the other end is closed
        pass
    return b"".join(parts).decode()


def test_without_a_terminal_a_run_tells_of_itself_in_plain_lines(ended, run):
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\x1b" not in ended.stdout
    lines = ended.stdout.splitlines()
    assert re.fullmatch(
        r"data   .*text\.txt: 20,000 bytes, in sequences of 32: 593 for training, 31 held out", lines[0]
    )
    assert lines[1] == "model  2 blocks of width 32, 30 steps of 16 sequences"
    assert lines[2] == f"run    {run}, 2 workers, 8 lanes"
    told = [int(number) for number in re.findall(r"^step +(\d+)  loss \d\.\d{4}", ended.stdout, re.MULTILINE)]
    assert told == list(range(2, 31, 2))
    assert re.search(r"^step 10  loss \d\.\d{4}, \d\.\d{4} held out, [\d,]+ tokens/s$", ended.stdout, re.MULTILINE)
    assert re.search(r"^digest [0-9a-f]{16}, the same for any number of workers$", ended.stdout, re.MULTILINE)
    assert "\nThe model writes:\n\n    def " in ended.stdout
    assert lines[-2:] == [
        f"more text:  phalanx generate {run} --prompt 'class '",
        f"a picture:  phalanx plot {run}",
    ]


def test_the_last_checkpoints_and_the_best_are_kept(run):
    assert checkpoints_of(run)[-3:] == [20, 25, 30]
    assert len(checkpoints_of(run)) <= 4


def test_on_a_terminal_a_run_has_a_bar(config, tmp_path):
    ours, theirs = pty.openpty()

    with subprocess.Popen(
        [*PHALANX, "train", str(config), "--steps", "20", "--run-dir", str(tmp_path / "run")],
        stdout=theirs,
        stderr=theirs,
        env=environ(TERM="xterm", COLUMNS="120"),
    ) as process:
        os.close(theirs)
        shown = read_terminal(ours)
        os.close(ours)

    assert process.returncode == 0
    assert re.search(r"step.*20/20.*loss \d\.\d{3}  [\d,]+ tokens/s", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown))


def test_on_a_terminal_that_can_only_print_letters_a_run_prints_lines(config, tmp_path):
    ours, theirs = pty.openpty()

    with subprocess.Popen(
        [*PHALANX, "train", str(config), "--steps", "20", "--run-dir", str(tmp_path / "run")],
        stdout=theirs,
        stderr=theirs,
        env=environ(TERM="dumb", NO_COLOR="1", PYTHONIOENCODING="ascii"),
    ) as process:
        os.close(theirs)
        shown = read_terminal(ours)
        os.close(ours)

    assert (process.returncode, "\x1b" in shown, shown.isascii()) == (0, False, True)
    assert re.search(r"^step 20  loss \d\.\d{4}", shown, re.MULTILINE)
    assert "Traceback" not in shown


def test_a_run_whose_output_nobody_reads_gets_to_its_end(config, tmp_path):
    run = tmp_path / "run"
    with training(config, "--steps", 20, "--run-dir", run) as process:
        read_until(process, "run ")
        process.stdout.close()
        complaints = process.stderr.read()

        assert (process.wait(), complaints) == (0, "")
    assert (run / "result.json").exists()


def test_the_same_seed_writes_the_same_text_and_another_seed_another(run):
    texts = [call("generate", run, "--prompt", "the ", "--length", 40, "--seed", seed) for seed in (1, 1, 2)]

    assert [(text.returncode, text.stderr) for text in texts] == [(0, "")] * 3
    assert texts[0].stdout.startswith("the ")
    assert texts[0].stdout == texts[1].stdout != texts[2].stdout


def test_a_run_is_drawn(run):
    ended = call("plot", run)

    assert (ended.returncode, ended.stdout) == (0, f"{run}/plot.png\n")
    assert (run / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_of_tokens_is_learnt_but_not_written_as_text(config, tmp_path):
    tokens = np.random.default_rng(0).integers(200, 256, 20_000)  # 256 of them, as there are bytes
    (tmp_path / "tokens.bin").write_bytes(tokens.astype("<u2").tobytes())
    run = tmp_path / "run"

    result = train(config, "--set", f"data.path={tmp_path}/tokens.bin", "--steps", 5, "--run-dir", run)
    written = call("generate", run)

    assert result["steps"] == 5
    assert not (run / "sample.txt").exists()
    assert (written.returncode, written.stdout) == (2, "")
    assert written.stderr.startswith(f"phalanx: {run} was trained on the tokens of {tmp_path}/tokens.bin, which ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_made(config, tmp_path):
    ended = call("train", config, "--device", "cuda", "--run-dir", tmp_path / "run")

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "phalanx: torch finds no GPU here: pass --device cpu\n"
    assert not (tmp_path / "run").exists()

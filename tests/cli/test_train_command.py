"""``phalanx train`` as far as it goes without starting workers, and the words of it."""

import io

import msgspec
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from phalanx.cli import train_show
from phalanx.cli.train import train
from phalanx.cli.train_show import Display, show_beginning, show_end, show_failure
from phalanx.errors import ConfigError
from phalanx.train.config import Config
from phalanx.train.config_text import parse_config
from phalanx.train.data import open_corpus
from phalanx.train.log import StepLog
from phalanx.train.record import StepRecord, float_bits
from phalanx.train.rundir import RunDir

RESULT = {
    "steps": 30,
    "loss": 2.5,
    "eval_loss": 2.25,
    "digest": "0123456789abcdef" * 4,
    "tokens_per_s": 1234.5,
    "workers": 2,
    "seconds": 12.3,
    "unigram_entropy": 3.0,
}


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path / "run", "", {})


def call(*arguments):
    """The exit status of the command and what it printed."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(train)
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if isinstance(result.exception, ConfigError):
        raise result.exception
    return result.exit_code, result.output


def make_step(step, eval_loss=None):
    times = {"compute_s": 0.1, "exchange_s": 0.01, "wait_s": 0.0, "seconds": 0.5}
    figures = {"loss": 2.0, "loss_bits": float_bits(2.0), "norm": 1.0, "lr": 0.1, "eval_loss": eval_loss}
    return StepRecord(step=step, digest="d", tokens=64, workers=2, **figures, **times)


def append(run, records):
    with StepLog(run.steps) as log:
        for record in records:
            log.append(record)


class TestCommand:
    def test_the_config_that_is_shown_has_what_was_set_and_can_be_read_back(self):
        options = ["--steps", "40", "--workers", "3", "--transport", "star", "--device", "cpu", "--seed", "5"]

        status, out = call("--show-config", *options, "--set", "train.lr=0.5", "--run-dir", "here")

        config = parse_config(out)
        assert status == 0
        assert (config.train.steps, config.train.seed, config.train.lr) == (40, 5, 0.5)
        assert (config.run.workers, config.run.transport.value, config.run.directory) == (3, "star", "here")

    def test_a_file_is_overruled_by_settings(self, tmp_path):
        file = tmp_path / "config.toml"
        file.write_text("[train]\nlr = 0.1\nbatch = 32\n", encoding="utf-8")

        _, out = call(file, "--show-config", "--set", "train.lr=0.5")

        assert (parse_config(out).train.lr, parse_config(out).train.batch) == (0.5, 32)

    def test_the_config_of_a_run_is_shown_without_going_on_with_it(self, run):
        run.config.write_text("[train]\nlr = 0.1\n", encoding="utf-8")

        status, out = call("--resume", run.path, "--show-config", "--workers", 4)

        assert (status, parse_config(out).train.lr, parse_config(out).run.workers) == (0, 0.1, 4)
        assert run.config.read_text(encoding="utf-8") == "[train]\nlr = 0.1\n"

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--from-step", "3"], "^--from-step says where to resume: pass --resume RUN_DIR too$"),
            (["none.toml"], "^cannot read none.toml: No such file or directory; name a config in TOML$"),
            (["none.toml", "--resume", "run"], "^run has its own config: pass --set to change a key"),
            (["--resume", "none"], "^there is no run in none: name a directory that phalanx train has made$"),
            (["--resume", "run", "--run-dir", "other"], "^this run is in run: leave out --run-dir"),
            (["--resume", "run", "--lanes", "4"], "^train.lanes=4 would change what this run is: "),
            (["--workers", "0"], "^run.workers must be at least 1, not 0$"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, tmp_path, monkeypatch, arguments, words):
        monkeypatch.chdir(tmp_path)

        with pytest.raises(ConfigError, match=words):
            call(*arguments)

    @pytest.mark.slow
    def test_a_model_that_is_larger_than_the_memory_is_refused(self, tmp_path):
        large = ["layers=1000", "width=65536", "hidden=1048576"]

        with pytest.raises(ConfigError, match=r"^the weights of this model take [\d,]+ GiB, and this machine has "):
            call("--run-dir", tmp_path / "run", *(each for one in large for each in ("--set", f"model.{one}")))

        assert not (tmp_path / "run").exists()

    def test_a_run_that_is_at_work_cannot_go_on_a_second_time(self, run):
        with run.hold(), pytest.raises(ConfigError, match=f"^another process is training in {run.path}: "):
            call("--resume", run.path)

    def test_a_config_that_is_no_text_is_refused(self, tmp_path):
        file = tmp_path / "config.toml"
        file.write_bytes(b"\xff\xfe")

        with pytest.raises(ConfigError, match=f"^cannot read {file}: it is not text; name a config in TOML$"):
            call(file)


class TestBeginning:
    @pytest.mark.parametrize(("start", "goal"), [(None, "30 steps"), (12, "steps 13 to 30")])
    def test_it_says_what_is_trained_on_what_and_where(self, run, tmp_path, capsys, start, goal):
        (tmp_path / "text").write_text("a text. " * 100, encoding="utf-8")
        config = parse_config("", [f"data.path={tmp_path}/text", "data.context=8", "train.steps=30", "run.workers=1"])
        corpus = open_corpus(config.data)

        show_beginning(run, config, corpus, start)

        assert capsys.readouterr().out.splitlines() == [
            f"data   {corpus.describe()}",
            f"model  4 blocks of width 128, {goal} of 16 sequences",
            f"run    {run.path}, 1 worker, 8 lanes",
        ]


class TestEnd:
    @pytest.fixture
    def config(self):
        return parse_config("", ["train.steps=30"])

    def test_json_is_one_line_of_just_what_was_promised(self, run, config, capsys):
        run.result.write_bytes(msgspec.json.encode(RESULT))

        is_complete = show_end(run, config, None, as_json=True)

        out = capsys.readouterr().out
        names = ["steps", "loss", "eval_loss", "digest", "tokens_per_s", "workers"]
        assert (is_complete, out.count("\n")) == (True, 1)
        assert msgspec.json.decode(out) == {name: RESULT[name] for name in names} | {"run_dir": str(run.path)}

    def test_a_whole_run_has_a_verdict_and_what_the_model_writes(self, run, config, capsys):
        run.result.write_bytes(msgspec.json.encode(RESULT))
        run.sample.write_bytes(b"def a\x00\xff:\n  b\n")

        is_complete = show_end(run, config, None, as_json=False)

        out = capsys.readouterr().out
        assert is_complete
        assert out.startswith(
            "\n30 steps in 12 s, 1,234 tokens/s\nloss   2.250 nats a token on held-out text; "
            "knowing only how often each token occurs gives 3.000"
        )
        assert "\nThe model writes:\n\n    def a·\N{REPLACEMENT CHARACTER}:\n      b\n\n" in out

    def test_a_run_that_was_stopped_says_how_to_go_on(self, run, config, capsys):
        run.result.write_bytes(msgspec.json.encode(RESULT | {"steps": 1}))

        is_complete = show_end(run, config, None, as_json=False)

        out = capsys.readouterr().out
        assert not is_complete
        assert out.startswith("\n1 step in 12 s")
        assert out.endswith(f"\n\nstopped early; continue with: phalanx train --resume {run.path}\n")

    def test_a_resumed_run_says_how_many_steps_it_has_taken_itself(self, run, config, capsys):
        run.result.write_bytes(msgspec.json.encode(RESULT))

        show_end(run, config, 12, as_json=False)

        assert capsys.readouterr().out.startswith("\n30 steps, 18 of them in 12 s, 1,234 tokens/s\n")

    def test_a_loss_that_is_not_finite_is_called_so(self, run, config, capsys):
        run.result.write_bytes(msgspec.json.encode(RESULT | {"eval_loss": None}))

        show_end(run, config, None, as_json=False)

        assert "\nloss   not finite on held-out text; knowing " in capsys.readouterr().out

    @pytest.mark.parametrize("has_checkpoint", [True, False])
    def test_a_failure_says_whether_there_is_something_to_go_on_from(self, run, capsys, has_checkpoint):
        if has_checkpoint:
            (run.checkpoints / "step-00000005").mkdir(parents=True)

        show_failure(run)

        go_on = f"phalanx train: resume from the last checkpoint with --resume {run.path}\n"
        again = f"phalanx train: there is no checkpoint to resume from: remove {run.path}, and start again\n"
        assert capsys.readouterr().err == (go_on if has_checkpoint else again)


class TestDisplay:
    def test_without_a_terminal_there_are_twenty_lines_and_one_for_each_evaluation(self, run, capsys):
        config = parse_config("", ["train.steps=200"])

        with Display(run, config, 0, is_silent=False):
            append(run, [make_step(step, 1.5 if step == 4 else None) for step in range(200)])

        lines = capsys.readouterr().out.splitlines()
        assert [int(line.split()[1]) for line in lines] == [5, *range(10, 201, 10)]
        assert lines[0] == "step   5  loss 2.0000, 1.5000 held out, 128 tokens/s"
        assert lines[1] == "step  10  loss 2.0000, 128 tokens/s"

    def test_a_run_that_goes_on_shows_only_what_is_new(self, run, capsys):
        append(run, [make_step(0), make_step(1)])

        with Display(run, parse_config("", ["train.steps=20"]), 2, is_silent=False):
            append(run, [make_step(2)])

        assert capsys.readouterr().out == "step  3  loss 2.0000, 128 tokens/s\n"

    def test_a_line_that_is_not_whole_is_not_shown(self, run, capsys):
        with Display(run, parse_config("", ["train.steps=20"]), 0, is_silent=False):
            append(run, [make_step(0)])
            with run.steps.open("ab") as file:
                file.write(b'{"step": 1, "lo')

        assert capsys.readouterr().out == "step  1  loss 2.0000, 128 tokens/s\n"

    def test_silence_is_kept(self, run, capsys):
        with Display(run, Config(), 0, is_silent=True):
            append(run, [make_step(step) for step in range(300)])

        assert capsys.readouterr().out == ""

    def test_a_terminal_has_a_bar(self, run, monkeypatch):
        shown = io.StringIO()
        terminal = Console(file=shown, force_terminal=True, width=120)
        monkeypatch.setattr(train_show, "Console", lambda: terminal)

        with Display(run, parse_config("", ["train.steps=20"]), 0, is_silent=False):
            append(run, [make_step(step) for step in range(20)])

        assert "20/20" in shown.getvalue()
        assert "loss 2.000  128 tokens/s" in shown.getvalue()

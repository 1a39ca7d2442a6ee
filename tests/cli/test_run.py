import sys

import pytest

import phalanx
from phalanx.cli import main


@pytest.fixture
def phalanx_command(monkeypatch, capsys):
    """Run ``phalanx`` in this process: the exit status, stdout and stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["phalanx", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        written = capsys.readouterr()
        return ended.value.code, written.out, written.err

    return call


def test_the_version_is_printed(phalanx_command):
    assert phalanx_command("--version") == (0, f"phalanx {phalanx.__version__}\n", "")


def test_the_help_shows_every_option(phalanx_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "dumb")

    status, out, _ = phalanx_command("run", "--help")

    assert status == 0
    assert all(word in out for word in ("phalanx run", "SCRIPT", "--workers", "-n", "--module", "--over", "--hosts"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-n", 0], "at least one worker, not 0"),
        (["-n", -3], "at least one worker, not -3"),
        (["-n", 2, "--hosts", 3], "1 to 2 hosts, not 3"),
        (["--hosts", 0], "hosts, not 0"),
        (["--over", "pigeon"], "--over must be auto or tcp, not 'pigeon'"),
    ],
)
def test_options_that_make_no_sense_are_one_line_and_status_2(phalanx_command, tmp_path, options, words):
    script = tmp_path / "script.py"
    script.touch()

    status, out, err = phalanx_command("run", *options, script)

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("phalanx: ")
    assert words in err


@pytest.mark.parametrize(("name", "words"), [("missing.py", "does not exist"), (".", "is a directory")])
def test_what_is_no_script_is_one_line_and_status_2(phalanx_command, tmp_path, name, words):
    status, out, err = phalanx_command("run", tmp_path / name)

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"{words}: pass a Python script" in err

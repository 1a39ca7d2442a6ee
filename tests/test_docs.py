"""The documents tell the truth: examples run, code runs and prints what is shown, commands and their options exist."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WITH_RAY = {"ray_train.py"}  # Ray starts its workers: tests/ray_train runs it
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name not in WITH_RAY)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PHALANX = (sys.executable, "-c", "from phalanx.cli import main; main()")

pytestmark = pytest.mark.slow


def code_blocks() -> Iterator[object]:
    """Every Python block that is to run, with the output shown below it, if any."""
    pattern = r"(<!-- no-run: .+ -->\n)?```python\n(.*?)```\n(?:\n```\n(.*?)```\n)?"
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for block in re.finditer(pattern, text, re.DOTALL):
            if not block[1]:
                line = text.count("\n", 0, block.start()) + 1
                yield pytest.param(block[2], block[3], id=f"{document.relative_to(ROOT)}:{line}")


def commands() -> Iterator[object]:
    """Every command line of ours that a document shows."""
    for document in DOCUMENTS:
        for block in re.findall(r"```(?:console|bash)\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL):
            for command in re.findall(r"^(?:\$ )?(?:scripts/)?phalanx (.*)$", block, re.MULTILINE):
                yield pytest.param(command, id=f"{document.relative_to(ROOT)}: {command}")


def run(*command: str, folder: Path = ROOT) -> str:
    """What a command prints; AssertionError with all its words if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


@lru_cache
def help_of(*words: str) -> str:
    return run(*PHALANX, *words, "--help")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_on_three_workers(example):
    assert run(*PHALANX, "run", "-n", "3", str(example))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_alone(example):
    assert run(sys.executable, str(example))


@pytest.mark.parametrize(("code", "shown"), list(code_blocks()))
def test_code_in_a_document_runs_and_prints_what_is_shown(code, shown, tmp_path):
    printed = run(sys.executable, "-c", code, folder=tmp_path)

    assert shown is None or printed == shown


@pytest.mark.parametrize("command", list(commands()))
def test_a_command_in_a_document_exists_with_its_options(command):
    words = shlex.split(command, comments=True)
    ours = list(takewhile(lambda word: not word.endswith(".py"), words))  # what follows a script is the script's own
    subcommands = [word for word in ours[:2] if re.fullmatch(r"[a-z][a-z-]*", word)]
    options = [word.partition("=")[0] for word in ours if word.startswith("-")]

    described = re.findall(r"[\w-]+", help_of(*subcommands))

    assert set(options) <= set(described), f"phalanx {' '.join(subcommands)} does not have all of {options}"

"""``phalanx verify``: compare two runs."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from phalanx.train.compare import compare
from phalanx.train.log import read_steps
from phalanx.train.rundir import RunDir


def verify(
    first: Annotated[Path, typer.Argument(help="The directory of a run.", metavar="RUN_A", show_default=False)],
    second: Annotated[Path, typer.Argument(help="The directory of another run.", metavar="RUN_B", show_default=False)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare two runs step by step, bit by bit, and show the first difference.

    Exit status 0: every step that both have is the same. 1: a step differs, or there is none that both have.
    """
    comparison = compare(*(read_steps(RunDir.open(path).steps) for path in (first, second)))
    if as_json:
        print(msgspec.json.encode({"is_same": comparison.is_same, **msgspec.to_builtins(comparison)}).decode())
    else:
        print(comparison)
    raise typer.Exit(0 if comparison.is_same else 1)

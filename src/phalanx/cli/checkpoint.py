"""``phalanx checkpoint``: inspect, verify and merge checkpoints."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from phalanx.errors import ConfigError

if TYPE_CHECKING:
    from phalanx.train.checkpoint import Amount, Description  # imports torch, which takes seconds

app = typer.Typer(no_args_is_help=True)
_Where = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="A checkpoint, or a run, for its last checkpoint.", show_default=False),
]


@app.callback()
def checkpoint() -> None:
    """Inspect checkpoints, verify them, and merge their shards."""


@app.command()
def inspect(
    path: _Where, *, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Show the step of a checkpoint, how many workers wrote it, and how much is in its files."""
    from phalanx.train.checkpoint import describe_checkpoint, list_checkpoints  # noqa: PLC0415 - it imports torch

    chosen = list_checkpoints(path)[-1]
    found = describe_checkpoint(chosen)
    if as_json:
        print(msgspec.json.encode({"path": str(chosen), **msgspec.to_builtins(found)}).decode())
    else:
        _print_table(chosen, found)


@app.command()
def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Checkpoints, folders of them, or runs.", show_default=False),
    ],
) -> None:
    """Read every checkpoint, and print whether it is complete or what is wrong with it.

    Exit status 0: all are complete. 1: one is not. 2: there is none at a path.
    """
    from phalanx.train.checkpoint import list_checkpoints, load  # noqa: PLC0415 - it imports torch

    is_complete = True
    for each in [each for path in paths for each in list_checkpoints(path)]:
        try:
            load(each)
            print(f"checkpoint {each} is complete")
        except ConfigError as error:
            print(error)
            is_complete = False
    raise typer.Exit(0 if is_complete else 1)


@app.command()
def merge(
    path: _Where,
    *,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder to write the checkpoint into.", show_default=False)
    ],
) -> None:
    """Write a checkpoint with its shards merged into one file, as a run without shards saves it."""
    from phalanx.train.checkpoint import list_checkpoints, merge_shards  # noqa: PLC0415 - it imports torch

    print(merge_shards(list_checkpoints(path)[-1], out))


def _print_table(path: Path, found: "Description") -> None:
    console = Console(markup=False)
    shards = "in one file" if found.workers == 1 else f"in the shards of {found.workers} workers"
    console.print(f"{path}: step {found.step}, {shards}", highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE)
    for heading in ("", "tensors", "elements", "bytes"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    sections = [
        found.files,
        {"parameters": found.parameters},
        {f"state: {key}": each for key, each in found.state.items()},
    ]
    for section in sections:
        for name, amount in section.items():
            table.add_row(name, *_cells(amount))
        table.add_section()
    console.print(table)


def _cells(amount: "Amount") -> list[str]:
    return [f"{figure:,}" for figure in (amount.tensors, amount.elements, amount.bytes)]

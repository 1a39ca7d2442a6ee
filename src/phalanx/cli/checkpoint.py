"""``phalanx checkpoint``: what is in a checkpoint, whether it is whole, and making one file of its shards."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from phalanx.errors import ConfigError

app = typer.Typer(no_args_is_help=True)
_Where = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="A checkpoint, or a run, whose last one is meant.", show_default=False),
]


@app.callback()
def checkpoint() -> None:
    """Look at checkpoints, check them, and make them whole."""


@app.command()
def inspect(
    path: _Where, *, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Show the step of a checkpoint, who wrote it, and how much is in its files."""
    from phalanx.cli.checkpoint_show import print_table  # noqa: PLC0415 - it imports torch, which takes seconds
    from phalanx.train.checkpoint import describe_checkpoint, list_checkpoints  # noqa: PLC0415

    chosen = list_checkpoints(path)[-1]
    found = describe_checkpoint(chosen)
    if as_json:
        print(msgspec.json.encode({"path": str(chosen), **msgspec.to_builtins(found)}).decode())
    else:
        print_table(chosen, found)


@app.command()
def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Checkpoints, folders of them, or runs.", show_default=False),
    ],
) -> None:
    """Read every checkpoint, and say whether it is whole or what is wrong with it.

    Exit status 0: all are whole. 1: one is not. 2: there is none at a path.
    """
    from phalanx.train.checkpoint import list_checkpoints, load  # noqa: PLC0415 - it imports torch, which takes seconds

    is_whole = True
    for each in [each for path in paths for each in list_checkpoints(path)]:
        try:
            load(each)
            print(f"checkpoint {each} is whole")
        except ConfigError as error:
            print(error)
            is_whole = False
    raise typer.Exit(0 if is_whole else 1)


@app.command()
def merge(
    path: _Where,
    *,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder to write the checkpoint into.", show_default=False)
    ],
) -> None:
    """Write a checkpoint with its shards in one file, as a run without them would have saved it."""
    from phalanx.train.checkpoint import list_checkpoints, merge_shards  # noqa: PLC0415 - it imports torch

    print(merge_shards(list_checkpoints(path)[-1], out))

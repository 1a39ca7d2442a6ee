"""Showing what is in a checkpoint."""

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from phalanx.train.checkpoint import Amount, Description


def print_table(path: Path, found: Description) -> None:
    """A checkpoint, for people."""
    console = Console(markup=False)
    shards = "in one piece" if found.workers == 1 else f"in the shards of {found.workers} workers"
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


def _cells(amount: Amount) -> list[str]:
    return [f"{figure:,}" for figure in (amount.tensors, amount.elements, amount.bytes)]

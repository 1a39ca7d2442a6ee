"""Showing what is measured, and what came of it."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from phalanx.cli.bench_drive import versions
from phalanx.cli.bench_plan import Row, System, baseline, cells


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Shows what is being measured, if a person looks.

    It writes between two measurements only: a bar that moves by itself would use the processor.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    erase = "\r\x1b[K"
    try:
        yield lambda words: print(f"{erase}{words}", end="", file=sys.stderr, flush=True)
    finally:
        print(erase, end="", file=sys.stderr, flush=True)


def print_json(rows: Sequence[msgspec.Struct]) -> None:
    """One JSON object for each figure, on a line of its own."""
    for row in rows:
        print(msgspec.json.encode(row).decode(), flush=True)


def print_table(rows: Sequence[Row], systems: Sequence[System]) -> None:
    """The figures, for people."""
    ranks = rows[0].ranks
    table = Table(title=f"all-reduce of f32, {ranks} ranks", title_justify="left", box=box.SIMPLE)
    for heading in ("size", "system", "median time", "algorithm GB/s", "bus GB/s", f"vs {baseline(rows)}"):
        table.add_column(heading, justify="left" if heading == "system" else "right", no_wrap=True)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        ends_size = following is not None and following.bytes != row.bytes
        table.add_row(*cells(row, rows), end_section=ends_size)
    libraries = ", ".join(f"{name} {version}" for name, version in versions(systems).items())
    console = Console()
    console.print(table)
    console.print(f"{ranks} ranks on {os.cpu_count()} cores, {libraries}", highlight=False, soft_wrap=True)

"""What the commands of ``phalanx bench`` print: tables, JSON, progress and errors."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from phalanx.errors import ConfigError, PhalanxError


@contextmanager
def errors_told() -> Iterator[None]:
    """Print an error on stderr and end with status 2 for a bad request, 1 for a measurement that failed.

    SIGTERM ends the block as Ctrl-C does, so that no process is left that the benchmark has started.
    """
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    except PhalanxError as error:
        print(f"phalanx bench: {error}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show what is being measured, if stderr is a terminal that can erase a line.

    It writes between two measurements only: a bar that moves by itself would use the processor.
    """
    if not sys.stderr.isatty() or Console(stderr=True).is_dumb_terminal:
        yield lambda _: None
        return
    erase = "\r\x1b[K"
    try:
        yield lambda words: print(f"{erase}{words}", end="", file=sys.stderr, flush=True)
    finally:
        print(erase, end="", file=sys.stderr, flush=True)


def print_json(rows: Sequence[msgspec.Struct]) -> None:
    """Print one JSON object per line."""
    for row in rows:
        print(msgspec.json.encode(row).decode(), flush=True)


def print_table(
    title: str, headings: Sequence[str], sections: Sequence[Sequence[Sequence[str]]], footer: str = ""
) -> None:
    """Print lines under headings, in sections, and a footer."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "system" else "right", no_wrap=True)
    for section in sections:
        for line in section:
            table.add_row(*line)
        table.add_section()
    console = Console()
    console.print(table)
    if footer:
        console.print(footer, highlight=False, soft_wrap=True)

"""``phalanx bench``: how fast the collectives are here, beside other systems."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from phalanx.cli.bench_drive import lacking, measure, versions
from phalanx.cli.bench_plan import (
    Row,
    System,
    baseline,
    cells,
    parse_ranks,
    parse_sizes,
    parse_systems,
)
from phalanx.errors import ConfigError, PhalanxError

app = typer.Typer(no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure Phalanx on this machine, beside other systems."""


@app.command("all-reduce")
def all_reduce(
    ranks: Annotated[str, typer.Option(help="Sizes of groups, as in 2,4.")] = "2",
    sizes: Annotated[str, typer.Option(help="Sizes of buffers, in B, KiB, MiB or GiB.")] = "4KiB,4MiB,64MiB",
    systems: Annotated[
        str, typer.Option(help=f"What to measure: {', '.join(system.value for system in System)}.")
    ] = "arena,copy,tcp,gloo,openmpi",
    rounds: Annotated[int, typer.Option(help="How often every system has its turn at every size.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,  # noqa: FBT002
) -> None:
    """Measure all-reduces (f32, sum) in several systems, taking turns in one run.

    The time of an all-reduce is that of its slowest rank; the table has medians.
    """
    try:
        groups, lengths, wanted = parse_ranks(ranks), parse_sizes(sizes), parse_systems(systems)
        if rounds < 1:
            raise ConfigError(f"{rounds} rounds measure nothing: give 1 or more")
        subjects = _installed(wanted)
        for size in groups:
            with _progress() as tell:
                table = measure(size, subjects, lengths, rounds, tell)
            _print_json(table) if as_json else _print_table(table, subjects)
    except PhalanxError as error:
        print(f"phalanx bench: {error}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None


def _installed(systems: Sequence[System]) -> list[System]:
    """Those of ``systems`` that can be measured here; the others are named on stderr."""
    reasons = {system: lacking(system) for system in systems}
    lines = [f"{system.value} is left out: {reason}" for system, reason in reasons.items() if reason]
    if len(lines) == len(systems):
        raise ConfigError("; ".join(lines))
    for line in lines:
        print(f"phalanx bench: {line}", file=sys.stderr)
    return [system for system, reason in reasons.items() if reason is None]


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
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


def _print_json(rows: Sequence[Row]) -> None:
    for row in rows:
        print(msgspec.json.encode(row).decode(), flush=True)


def _print_table(rows: Sequence[Row], systems: Sequence[System]) -> None:
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

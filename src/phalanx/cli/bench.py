"""``phalanx bench``: how fast the collectives are here, beside other systems."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from phalanx.cli.bench_commit import commit
from phalanx.cli.bench_drive import lacking, measure
from phalanx.cli.bench_plan import System, parse_ranks, parse_sizes, parse_systems
from phalanx.cli.bench_show import print_json, print_table, progress
from phalanx.cli.bench_star import star
from phalanx.cli.bench_step import step
from phalanx.cli.bench_zero import zero
from phalanx.errors import ConfigError, PhalanxError

app = typer.Typer(no_args_is_help=True)
app.command()(commit)
app.command()(star)
app.command()(step)
app.command()(zero)


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
            with progress() as tell:
                table = measure(size, subjects, lengths, rounds, tell)
            print_json(table) if as_json else print_table(table, subjects)
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

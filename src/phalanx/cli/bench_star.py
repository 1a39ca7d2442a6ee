"""``phalanx bench star``: the gradient server beside an all-reduce through rank 0."""

import sys
from typing import Annotated

import typer

from phalanx.cli.bench_drive import measure
from phalanx.cli.bench_plan import System, parse_ranks, parse_sizes
from phalanx.cli.bench_show import print_json, print_table, progress
from phalanx.errors import ConfigError, PhalanxError

_SYSTEMS = (System.GRADIENT_SERVER, System.STAR, System.STAR_APART)


def star(
    workers: Annotated[str, typer.Option(help="How many workers, as in 2,4.")] = "4",
    sizes: Annotated[str, typer.Option(help="Sizes of gradients, in B, KiB, MiB or GiB.")] = "16MiB",
    rounds: Annotated[int, typer.Option(help="How often each of them has its turn at every size.")] = 5,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Measure exchanges with a gradient server and all-reduces through rank 0, both over TCP, taking turns in one run.

    The server is a process of its own, so that it has one worker more than rank 0 to read and to answer; star-apart
    has one rank more for that reason. The time of an exchange is that of its slowest worker; the table has medians.
    """
    try:
        groups, lengths = parse_ranks(workers), parse_sizes(sizes)
        if rounds < 1:
            raise ConfigError(f"{rounds} rounds measure nothing: give 1 or more")
        for size in groups:
            with progress() as tell:
                table = measure(size, _SYSTEMS, lengths, rounds, tell)
            print_json(table) if as_json else print_table(table, _SYSTEMS)
    except PhalanxError as error:
        print(f"phalanx bench: {error}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None

"""``phalanx bench step``: what exchanging gradients adds to a training step."""

from rich import box
from rich.console import Console
from rich.table import Table

from phalanx.cli.bench_options import AsJson, Batch, Fused, Ranks, Rounds, Systems, Tokens, Width
from phalanx.cli.bench_plan import format_time, parse_ranks
from phalanx.cli.bench_show import print_json
from phalanx.cli.bench_step_plan import Row, StepSystem, rows
from phalanx.cli.bench_training import Training, Turns, choose, describe_machine, drive

_ALL = "engine,data-parallel,ddp-gloo,no-exchange"


def step(
    ranks: Ranks = "2",
    systems: Systems = _ALL,
    rounds: Rounds = 30,
    tokens: Tokens = 64,
    batch: Batch = 1,
    width: Width = 384,
    *,
    fused: Fused = False,
    as_json: AsJson = False,
) -> None:
    """Measure training steps of a small transformer in several systems, taking turns in one run.

    The time of a step is that of its slowest rank; the table has medians. The
    overhead is what a step costs over the same processes without any exchange.
    """
    wanted, groups = tuple(system.value for system in choose(StepSystem, systems)), parse_ranks(ranks)
    for size in groups:
        training = Training(
            systems=wanted, ranks=size, rounds=rounds, tokens=tokens, batch=batch, width=width, is_fused=fused
        )
        found = rows(drive("phalanx.cli.bench_step_worker", training, Turns), size)
        print_json(found) if as_json else _print(found, training)


def _print(rows: list[Row], training: Training) -> None:
    table = Table(title=training.describe(rows[0].parameters), title_justify="left", box=box.SIMPLE)
    for heading in ("system", "median time", "overhead"):
        table.add_column(heading, justify="left" if heading == "system" else "right", no_wrap=True)
    for row in rows:
        overhead = "" if row.overhead is None else f"{row.overhead:+.1%}"
        table.add_row(row.system, format_time(row.median_s), overhead)
    console = Console()
    console.print(table)
    console.print(describe_machine(training.ranks), highlight=False, soft_wrap=True)

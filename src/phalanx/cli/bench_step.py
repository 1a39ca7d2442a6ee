"""``phalanx bench step``: what exchanging gradients adds to a training step."""

import importlib.metadata
import os
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from phalanx.cli.bench_plan import format_time, parse_ranks
from phalanx.cli.bench_step_plan import Row, StepSystem, make_config, parse_step_systems
from phalanx.launch import local

_ALL = "engine,data-parallel,ddp-gloo,no-exchange"


def step(
    ranks: Annotated[str, typer.Option(help="How many workers, each of one thread, as in 2,4.")] = "2",
    systems: Annotated[str, typer.Option(help="What to measure.")] = _ALL,
    rounds: Annotated[int, typer.Option(help="How many steps each system takes.", min=1)] = 30,
    tokens: Annotated[int, typer.Option(help="Tokens of a sequence.", min=1)] = 64,
    batch: Annotated[int, typer.Option(help="Sequences of each worker and step.", min=1)] = 1,
    width: Annotated[int, typer.Option(help="Of the model; 384 gives about 11 M parameters.")] = 384,
    *,
    fused: Annotated[bool, typer.Option("--fused", help="Use AdamW(fused=True), not torch's default.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Measure training steps of a small transformer in several systems, taking turns in one run.

    The time of a step is that of its slowest rank; the table has medians. The
    overhead is what a step costs over the same processes without any exchange.
    """
    wanted, groups = parse_step_systems(systems), parse_ranks(ranks)
    make_config(width)
    for size in groups:
        numbers = {"rounds": rounds, "tokens": tokens, "batch": batch, "width": width}
        found = _measure(size, wanted, numbers, is_fused=fused)
        if as_json:
            for row in found:
                print(msgspec.json.encode(row).decode(), flush=True)
        else:
            _print(found, tokens, batch)


def _measure(ranks: int, systems: list[StepSystem], numbers: dict[str, int], *, is_fused: bool) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        out = Path(folder) / "rows"
        arguments = ["--systems", ",".join(system.value for system in systems), "--ranks", str(ranks)]
        arguments += [word for name, number in numbers.items() for word in (f"--{name}", str(number))]
        arguments += ["--fused"] if is_fused else []
        arguments += ["--meeting", str(Path(folder) / "gloo"), "--out", str(out)]
        program = local.Program(
            name="phalanx.cli.bench_step_worker", arguments=tuple(arguments), is_module=True, workers=ranks
        )
        status = local.run(program)
        if status or not out.exists():
            raise typer.Exit(status or 1)
        return msgspec.json.decode(out.read_bytes(), type=list[Row])


def _print(rows: list[Row], tokens: int, batch: int) -> None:
    first = rows[0]
    title = f"training step, {first.parameters / 1e6:.1f} M parameters, {batch} x {tokens} tokens a worker"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for heading in ("system", "median time", "overhead"):
        table.add_column(heading, justify="left" if heading == "system" else "right", no_wrap=True)
    for row in rows:
        overhead = "" if row.overhead is None else f"{row.overhead:+.1%}"
        table.add_row(row.system, format_time(row.median_s), overhead)
    console = Console()
    console.print(table)
    words = (
        f"{first.ranks} workers of one thread on {os.cpu_count()} cores, torch {importlib.metadata.version('torch')}"
    )
    console.print(words, highlight=False, soft_wrap=True)

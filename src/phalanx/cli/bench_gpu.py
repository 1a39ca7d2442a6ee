"""``phalanx bench gpu``: training steps of ranks that share a GPU."""

from typing import Annotated

import typer

from phalanx.bench.text import parse_counts, parse_systems
from phalanx.bench.training import gpu as gpus
from phalanx.cli.bench_output import errors_told, print_json, print_table


def bench_gpu(
    ranks: Annotated[str, typer.Option(help="How many workers share the GPU, as in 1,2,4.")] = "1,2,4",
    systems: Annotated[
        str, typer.Option(help=f"What to measure: {', '.join(system.value for system in gpus.GpuSystem)}.")
    ] = "engine,data-parallel,data-parallel-host,ddp-gloo,no-exchange,no-exchange-exact",
    turns: Annotated[int, typer.Option(help="How often every system has its turn.", min=1)] = 2,
    steps: Annotated[int, typer.Option(help="How many steps a system takes in each turn.", min=1)] = 8,
    tokens: Annotated[int, typer.Option(help="Tokens of a sequence.", min=1)] = 1024,
    batch: Annotated[int, typer.Option(help="Sequences of each worker and step.", min=1)] = 16,
    layers: Annotated[int, typer.Option(help="Of the model.", min=1)] = 24,
    width: Annotated[int, typer.Option(help="Of the model, a multiple of 64.", min=64)] = 1024,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Measure training steps of a GPT-2 in bf16 autocast, of several workers on one GPU.

    With 24 layers of width 1024 it has 355 M parameters. The systems take turns
    in one run. The time of a step is that of its slowest rank; the table has
    medians. The floor of a system is the same processes without any exchange,
    no-exchange, or for an engine no-exchange-exact. Its memory is what all ranks
    took of the GPU, divided by their number.
    """
    with errors_told():
        names = tuple(system.value for system in parse_systems(gpus.GpuSystem, systems))
        for size in parse_counts(ranks, least=1):
            task = gpus.GpuTask(
                systems=names,
                ranks=size,
                turns=turns,
                steps=steps,
                batch=batch,
                tokens=tokens,
                layers=layers,
                width=width,
            )
            device, rows = gpus.measure_gpu(task)
            if as_json:
                print_json(rows)
            else:
                lines = [gpus.cells(row) for row in rows]
                print_table(task.describe(rows[0].parameters), gpus.HEADINGS, [lines], device)

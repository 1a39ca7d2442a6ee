"""``phalanx bench zero``: what an optimizer whose state is spread over the ranks costs in time, and saves in memory."""

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from phalanx.cli.bench_options import AsJson, Batch, Fused, Ranks, Rounds, Systems, Tokens, Width
from phalanx.cli.bench_plan import parse_ranks
from phalanx.cli.bench_show import print_json
from phalanx.cli.bench_training import Training, Turns, choose, describe_machine, drive
from phalanx.cli.bench_zero_plan import Memory, Row, ZeroSystem, cells, rows

_ALL = "zero,full,torch-zero"
_PEAK = (
    "peak: how far resident memory grew beyond what it was before the model was made (VmHWM less VmRSS then), "
    "in processes of the system's own; memory that ranks share counts on each that has touched it"
)


def zero(
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
    """Measure AdamW steps of a small transformer, with the optimizer's state spread over the ranks and without.

    The systems take turns in one run. The time of a step is that of its slowest
    rank; the table has medians. Then each system takes a few steps in processes
    of its own, to see its memory on the rank that needs most. The state is the
    bytes of the optimizer's tensors. The peak is how far resident memory grew
    beyond what it was before the model was made: VmHWM at the end less VmRSS
    then, from /proc/self/status, so Linux is needed. Memory that ranks share
    counts on each rank that has touched it.
    """
    wanted, groups = tuple(system.value for system in choose(ZeroSystem, systems)), parse_ranks(ranks, least=1)
    for size in groups:
        training = Training(
            systems=wanted, ranks=size, rounds=rounds, tokens=tokens, batch=batch, width=width, is_fused=fused
        )
        turns = drive("phalanx.cli.bench_zero_worker", training, Turns)
        memory = {name: _weigh(name, training) for name in wanted}
        found = rows(turns, memory, size)
        print_json(found) if as_json else _print(found, training)


def _weigh(name: str, training: Training) -> Memory:
    alone = msgspec.structs.replace(training, systems=(name,))
    return drive("phalanx.cli.bench_zero_memory", alone, Memory)


def _print(rows: list[Row], training: Training) -> None:
    table = Table(title=training.describe(rows[0].parameters), title_justify="left", box=box.SIMPLE)
    for heading in ("system", "median time", "vs torch-zero", "state per rank", "peak per rank"):
        table.add_column(heading, justify="left" if heading == "system" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*cells(row, rows))
    console = Console()
    console.print(table)
    console.print(describe_machine(training.ranks), highlight=False, soft_wrap=True)
    console.print(_PEAK, highlight=False, soft_wrap=True)

"""``phalanx bench``: how fast Phalanx is on this machine, beside other systems."""

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from phalanx.bench.all_reduce.driver import lacking, measure, versions
from phalanx.bench.all_reduce.plan import AllReduceRow, AllReduceSystem, baseline, cells
from phalanx.bench.commit import measure_commits
from phalanx.bench.hosts import join as joining
from phalanx.bench.hosts import plan as between
from phalanx.bench.hosts.driver import measure_hosts, measure_join
from phalanx.bench.plot import draw_all_reduces
from phalanx.bench.text import format_time, parse_counts, parse_sizes, parse_systems
from phalanx.bench.training import checkpoint as savings
from phalanx.bench.training import step as steps
from phalanx.bench.training import torch_backend as backends
from phalanx.bench.training import zero as zeros
from phalanx.bench.training.driver import Training, describe_machine
from phalanx.cli.bench_gpu import bench_gpu
from phalanx.cli.bench_output import errors_told, print_json, print_table, progress
from phalanx.errors import ConfigError
from phalanx.transport import usable_cpus

_STAR = (AllReduceSystem.GRADIENT_SERVER, AllReduceSystem.STAR, AllReduceSystem.STAR_APART)

_Ranks = Annotated[str, typer.Option(help="How many workers, each of one thread, as in 2,4.")]
_Systems = Annotated[str, typer.Option(help="What to measure.")]
_Sizes = Annotated[str, typer.Option(help="Sizes of buffers, in B, KiB, MiB or GiB.")]
_Turns = Annotated[int, typer.Option(help="How often every system has its turn at every size.")]
_Steps = Annotated[int, typer.Option(help="How many steps each system takes.", min=1)]
_Tokens = Annotated[int, typer.Option(help="Tokens of a sequence.", min=1)]
_Batch = Annotated[int, typer.Option(help="Sequences of each worker and step.", min=1)]
_Width = Annotated[int, typer.Option(help="Of the model; 384 gives about 11 M parameters.")]
_Fused = Annotated[bool, typer.Option("--fused", help="Use AdamW(fused=True), not torch's default.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]

app = typer.Typer(no_args_is_help=True)
app.command("gpu")(bench_gpu)


@app.callback()
def bench() -> None:
    """Measure Phalanx on this machine, beside other systems."""


@app.command("all-reduce")
def all_reduce(
    ranks: Annotated[str, typer.Option(help="Sizes of groups, as in 2,4.")] = "2",
    sizes: _Sizes = "4KiB,4MiB,64MiB",
    systems: Annotated[
        str, typer.Option(help=f"What to measure: {', '.join(system.value for system in AllReduceSystem)}.")
    ] = "arena,copy,tcp,gloo,openmpi",
    rounds: _Turns = 5,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw a chart, as .svg or .png.", show_default=False)
    ] = None,
    *,
    as_json: _AsJson = False,
) -> None:
    """Measure all-reduces (f32, sum) in several systems, taking turns in one run.

    The time of an all-reduce is that of its slowest rank; the table has medians.
    """
    with errors_told():
        _measure_all_reduces(ranks, sizes, parse_systems(AllReduceSystem, systems), rounds, plot, as_json=as_json)


@app.command()
def star(
    workers: Annotated[str, typer.Option(help="How many workers, as in 2,4.")] = "4",
    sizes: _Sizes = "16MiB",
    rounds: _Turns = 5,
    *,
    as_json: _AsJson = False,
) -> None:
    """Measure exchanges with a gradient server and all-reduces through rank 0, both over TCP, taking turns in one run.

    The server is a process of its own, so that it has one worker more than rank 0 to read and to answer; star-apart
    has one rank more for that reason. The time of an exchange is that of its slowest worker; the table has medians.
    """
    with errors_told():
        _measure_all_reduces(workers, sizes, _STAR, rounds, as_json=as_json)


@app.command()
def step(
    ranks: _Ranks = "2",
    systems: _Systems = "engine,engine-gloo,engine-elastic,engine-unguarded,data-parallel,ddp-gloo,no-exchange",
    rounds: _Steps = 30,
    tokens: _Tokens = 64,
    batch: _Batch = 1,
    width: _Width = 384,
    telemetry: Annotated[
        str, typer.Option(metavar="on|off|on,off", help="Whether the engine records what ranks do when; or both.")
    ] = "off",
    *,
    fused: _Fused = False,
    as_json: _AsJson = False,
) -> None:
    """Measure training steps of a small transformer in several systems, taking turns in one run.

    The time of a step is that of its slowest rank; the table has medians. The
    overhead is what a step costs over the same processes without any exchange.
    The last column compares it with a step that has no digest, guard or vote.
    """
    with errors_told():
        chosen = steps.choose_telemetry(parse_systems(steps.StepSystem, systems), telemetry)
        names = tuple(system.value for system in chosen)
        for size in parse_counts(ranks):
            training = Training(
                systems=names, ranks=size, rounds=rounds, tokens=tokens, batch=batch, width=width, is_fused=fused
            )
            rows = steps.measure_steps(training)
            if as_json:
                print_json(rows)
            else:
                lines = [steps.cells(row) for row in rows]
                footer = describe_machine(size) + steps.describe_cost(rows)
                print_table(training.describe(rows[0].parameters), steps.HEADINGS, [lines], footer)


@app.command("torch")
def torch_backend(
    ranks: _Ranks = "2",
    sizes: _Sizes = "4KiB,4MiB,64MiB",
    rounds: _Turns = 20,
    steps: _Steps = 20,
    tokens: _Tokens = 64,
    width: _Width = 384,
    *,
    as_json: _AsJson = False,
) -> None:
    """Measure torch.distributed over phalanx and over Gloo: all-reduces, and steps of DDP and FSDP2.

    Both backends take turns in one run. The time is that of the slowest rank; the
    table has medians.
    """
    with errors_told():
        lengths = tuple(parse_sizes(sizes))
        for size in parse_counts(ranks):
            task = backends.BackendTask(
                ranks=size, rounds=rounds, steps=steps, sizes=lengths, width=width, tokens=tokens
            )
            rows = backends.measure_backends(task)
            if as_json:
                print_json(rows)
            else:
                sections = [
                    [backends.cells(row, rows) for row in section]
                    for _, section in groupby(rows, lambda row: (row.what, row.bytes))
                ]
                title = f"torch.distributed, {size} ranks"
                print_table(title, backends.HEADINGS, sections, describe_machine(size))


@app.command()
def zero(
    ranks: _Ranks = "2",
    systems: _Systems = "zero,full,torch-zero",
    rounds: _Steps = 30,
    tokens: _Tokens = 64,
    batch: _Batch = 1,
    width: _Width = 384,
    *,
    fused: _Fused = False,
    as_json: _AsJson = False,
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
    with errors_told():
        names = tuple(system.value for system in parse_systems(zeros.ZeroSystem, systems))
        for size in parse_counts(ranks, least=1):
            training = Training(
                systems=names, ranks=size, rounds=rounds, tokens=tokens, batch=batch, width=width, is_fused=fused
            )
            rows = zeros.measure_optimizers(training)
            if as_json:
                print_json(rows)
            else:
                lines = [zeros.cells(row, rows) for row in rows]
                footer = f"{describe_machine(size)}\n{zeros.PEAK}"
                print_table(training.describe(rows[0].parameters), zeros.HEADINGS, [lines], footer)


@app.command()
def checkpoint(
    ranks: Annotated[int, typer.Option(help="How many workers, each of one thread.", min=1)] = 2,
    rounds: Annotated[int, typer.Option(help="How many checkpoints are saved in each way.", min=1)] = 10,
    tokens: _Tokens = 128,
    batch: _Batch = 2,
    *,
    as_json: _AsJson = False,
) -> None:
    """Measure what a checkpoint costs training that waits for it, and training that goes on beside it.

    Two models are trained: the default one of phalanx train, and one of about
    11 M parameters. Steps without a checkpoint, with one in the foreground and
    with one in the background take turns. The table has medians.
    """
    with errors_told():
        for model in range(len(savings.MODELS)):
            task = savings.SavingTask(model=model, ranks=ranks, rounds=rounds, tokens=tokens, batch=batch)
            rows = savings.measure_savings(task)
            if as_json:
                print_json(rows)
            else:
                title = savings.describe(task, rows[0].parameters)
                print_table(title, savings.HEADINGS, [[savings.cells(row) for row in rows]], describe_machine(ranks))


@app.command()
def hosts(
    hosts: Annotated[int, typer.Option(help="How many hosts to make.")] = 4,
    ranks: Annotated[int, typer.Option(help="How many workers, each of one thread, run on each host.")] = 1,
    rate: Annotated[str, typer.Option(help="How fast each host sends and receives, as in 100mbit.")] = "1gbit",
    systems: _Systems = "engine,data-parallel,data-parallel-bf16,ddp-gloo,all-reduce,all-reduce-gloo",
    rounds: _Steps = 20,
    *,
    as_json: _AsJson = False,
) -> None:
    """Measure training steps and all-reduces between hosts that this command makes on this machine.

    A host is a network namespace. A line with the given rate connects it to a
    switch, and nothing connects it to the outside. This needs Linux and root.
    The hosts are gone when the command ends, also when it is killed. The systems
    take turns in one run. The time is that of the slowest rank; the table has
    medians, beside the time that the bytes need on the line alone.
    """
    with errors_told():
        between.check_size(hosts, ranks)
        wanted, rate_bits = parse_systems(between.HostSystem, systems), between.parse_rate(rate)
        rows = measure_hosts(wanted, hosts, ranks, rate_bits, rounds)
        if as_json:
            print_json(rows)
        else:
            title = f"{hosts} hosts, ranks on each: {ranks}, {rate}"
            lines = [between.cells(row) for row in rows]
            print_table(title, between.HEADINGS, [lines], describe_machine(hosts * ranks))


@app.command()
def join(
    donors: Annotated[int, typer.Option(help="How many hosts train before, each with one worker.", min=1)] = 1,
    megabytes: Annotated[int, typer.Option(help="How much state the worker needs that joins.", min=16)] = 400,
    rate: Annotated[str, typer.Option(help="How fast each of these hosts sends, as in 100mbit.")] = "1gbit",
    *,
    as_json: _AsJson = False,
) -> None:
    """Measure how long a worker that joins a run waits until it trains.

    The hosts are made as in `phalanx bench hosts`. The host of the joiner receives as fast as all the others send.
    The time is that from its admission to its first lane: the state travels, and all workers compare its digest.
    The line alone would need the time in the table for the bytes of the state.
    """
    with errors_told():
        between.check_size(donors + 1, 1)
        layers = max(1, round(megabytes * 1e6 / joining.STATE_BYTES_OF_LAYER))
        row = measure_join(donors, layers, between.parse_rate(rate))
        if as_json:
            print_json([row])
        else:
            title = f"a worker joins, {donors} hosts at {rate}"
            print_table(title, joining.HEADINGS, [[joining.cells(row)]], describe_machine(donors + 1))


@app.command()
def commit(
    workers: Annotated[str, typer.Option(help="How many workers, as in 10,50,200.")] = "10,50,200",
    steps: Annotated[int, typer.Option(help="How many empty steps.", min=1)] = 100,
    *,
    journal: Annotated[bool, typer.Option(help="Let the coordinator write every step to its journal.")] = False,
    as_json: _AsJson = False,
) -> None:
    """Measure how long it takes until a step counts.

    Workers are threads of this process with real clients over TCP; the coordinator is a process of its own.
    The time of a step is that from the last worker's done to the last worker's hearing of the commit.
    """
    with errors_told():
        rows = []
        for count in parse_counts(workers, least=1):
            rows.append(measure_commits(count, steps, with_journal=journal))
            if as_json:
                print_json(rows[-1:])
        if not as_json:
            lines = [
                (str(row.workers), str(row.steps), *map(format_time, (row.median_s, row.worst_s, row.per_worker_s)))
                for row in rows
            ]
            headings = ("workers", "steps", "median", "worst", "median per worker")
            print_table("from the last done to the last commit", headings, [lines])


def _measure_all_reduces(
    ranks: str,
    sizes: str,
    wanted: Sequence[AllReduceSystem],
    rounds: int,
    plot: Path | None = None,
    *,
    as_json: bool,
) -> None:
    groups, lengths = parse_counts(ranks), parse_sizes(sizes)
    if rounds < 1:
        raise ConfigError(f"{rounds} rounds measure nothing: give 1 or more")
    systems = _installed(wanted)
    measured: list[AllReduceRow] = []
    libraries = ", ".join(f"{name} {version}" for name, version in versions(systems).items())
    for size in groups:
        with progress() as tell:
            rows = measure(size, systems, lengths, rounds, tell)
        measured += rows
        if as_json:
            print_json(rows)
            continue
        headings = ("size", "system", "median time", "algorithm GB/s", "bus GB/s", f"vs {baseline(rows)}")
        sections = [[cells(row, rows) for row in section] for _, section in groupby(rows, lambda row: row.bytes)]
        footer = f"{size} ranks on {usable_cpus()} cores, {libraries}"
        print_table(f"all-reduce of f32, {size} ranks", headings, sections, footer)
    if plot:
        draw_all_reduces(measured, plot, f"{usable_cpus()} cores, {libraries}")


def _installed(systems: Sequence[AllReduceSystem]) -> list[AllReduceSystem]:
    """Return those of ``systems`` that can be measured here, and name the others on stderr."""
    reasons = {system: lacking(system) for system in systems}
    lines = [f"{system.value} is left out: {reason}" for system, reason in reasons.items() if reason]
    if len(lines) == len(systems):
        raise ConfigError("; ".join(lines))
    for line in lines:
        print(f"phalanx bench: {line}", file=sys.stderr)
    return [system for system, reason in reasons.items() if reason is None]

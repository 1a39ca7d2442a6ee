"""``phalanx chaos``: train calmly, train in a storm, and compare."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from phalanx.cli.chaos_hosts import train_on_hosts
from phalanx.cli.train_chaos import ChaosReport, describe_chaos
from phalanx.coordinator import parse_workers
from phalanx.errors import ConfigError
from phalanx.launch import worker
from phalanx.launch.chaos import Mishap, parse_chaos, plan_strikes
from phalanx.launch.network import lacking
from phalanx.launch.resource_count import ResourceCount
from phalanx.train.compare import compare
from phalanx.train.config import Transport
from phalanx.train.log import read_steps
from phalanx.train.rundir import RunDir

_STORM = "kill=30,stop=5,join=5,coordinator=1"
_KILLS = ("kill", "segfault", "host")


class StormVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a run with failures was the same as one without, and what happened to it."""

    same: bool
    seed: int
    digest: str
    kills: int
    stops: int
    joins: int
    coordinator_restarts: int
    missing: dict[str, int]
    recoveries_s: list[float]
    before: ResourceCount | None
    after: ResourceCount | None


def chaos(
    config_file: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="What to train; by default what phalanx train does.")
    ] = None,
    *,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one key; repeat for more.")
    ] = None,
    steps: Annotated[int, typer.Option(help="How many updates of the weights to make.")] = 200,
    workers: Annotated[str, typer.Option(metavar="N|MIN:MAX", help="How many workers the stormy run has.")] = "4",
    hosts: Annotated[
        int,
        typer.Option(
            min=1, help="Spread them over so many hosts, which are network namespaces; needs root and iproute2."
        ),
    ] = 1,
    storm: Annotated[
        str, typer.Option("--chaos", metavar="kill=20,stop=5", help="What happens; see phalanx train --chaos.")
    ] = _STORM,
    chaos_seed: Annotated[int, typer.Option(help="Seed of the moments and victims.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many storms, each with the next seed.")] = 1,
    transport: Annotated[
        Transport, typer.Option(help="How the stormy run exchanges gradients.", show_default=False)
    ] = Transport.AUTO,
    zero: Annotated[bool, typer.Option("--zero", help="The workers of the stormy run share the optimizer.")] = False,
    directory: Annotated[
        Path | None, typer.Option("--run-dir", help="Where to save the runs; by default they are removed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each storm.")] = False,
) -> None:
    """Show that failures change no bit: train calmly with one worker, then in a storm.

    The exit status is 0 only if both runs took the same steps with the same
    losses, norms and digests, each once and in order, and ended with the same
    weights.
    """
    counts = parse_chaos(storm)
    _check_hosts(hosts, workers, counts)
    common = [*([] if config_file is None else [str(config_file)]), "--steps", str(steps)]
    common += [word for setting in sets or [] for word in ("--set", setting)]
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that everything below is undone
    with ExitStack() as stack:
        folder = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="phalanx-chaos-")))
        calm = _train(folder / "calm", [*common, "--workers", "1"])
        if not as_json:
            print(f"calm   {steps} steps with 1 worker, digest {calm.read_result().digest[:16]}", flush=True)
        verdicts = []
        for seed in range(chaos_seed, chaos_seed + seeds):
            options = [*common, "--workers", workers, "--transport", transport.value, *(["--zero"] if zero else [])]
            where = folder / f"storm-{seed}"
            if hosts == 1:
                stormy = _train(where, [*options, "--chaos", storm, "--chaos-seed", str(seed)])
            else:
                strikes, most = plan_strikes(counts, steps, seed), parse_workers(workers)[1]
                stormy = train_on_hosts(where, options, strikes, hosts, most, is_shared=zero)
            report = msgspec.json.decode(stormy.chaos.read_bytes(), type=ChaosReport)
            verdicts.append(_judge(calm, stormy, report, seed))
            print(
                msgspec.json.encode(verdicts[-1]).decode() if as_json else _describe(verdicts[-1], report), flush=True
            )
    raise typer.Exit(0 if all(each.same for each in verdicts) else 1)


def _check_hosts(hosts: int, workers: str, counts: Mapping[Mishap, int]) -> None:
    """Raise ConfigError unless so many hosts can be made, and the workers can be spread over them."""
    most = parse_workers(workers)[1]
    if hosts == 1:
        if counts.get(Mishap.PARTITION):
            raise ConfigError("a partition needs several hosts: pass --hosts 2, or leave it out")
        return
    if most % hosts:
        raise ConfigError(f"{most} workers cannot be spread evenly over {hosts} hosts: change --workers or --hosts")
    if reason := lacking():
        raise ConfigError(f"cannot make hosts here: {reason}")


def _train(where: Path, options: Sequence[str]) -> RunDir:
    """Run ``phalanx train``, which must come to its end. It dies with this process, and so do its workers."""
    command = ["-m", "phalanx", "train", *options, "--run-dir", str(where), "--json"]
    ended = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-I", "-S", worker.__file__, str(os.getpid()), *command],
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    run = RunDir(where)
    if ended.returncode != 0 or not run.result.exists():
        raise ConfigError(f"this run ended with {ended.returncode}: {' '.join(command)}\n{ended.stderr}")
    return run


def _judge(calm: RunDir, stormy: RunDir, report: ChaosReport, seed: int) -> StormVerdict:
    steps, expected = read_steps(stormy.steps), read_steps(calm.steps)
    is_same = compare(expected, steps).is_same and [each.step for each in steps] == [each.step for each in expected]
    is_same &= [each.eval_loss for each in steps] == [each.eval_loss for each in expected]
    digest = stormy.read_result().digest
    return StormVerdict(
        same=is_same and digest == calm.read_result().digest,
        seed=seed,
        digest=digest,
        kills=sum(report.happened.get(name, 0) for name in _KILLS),
        stops=report.happened.get("stop", 0),
        joins=report.joins,
        coordinator_restarts=report.coordinator_restarts,
        missing=report.missing,
        recoveries_s=[each.committed_s for each in report.recoveries],
        before=report.before,
        after=report.after,
    )


def _describe(verdict: StormVerdict, report: ChaosReport) -> str:
    outcome = "the same, bit for bit" if verdict.same else "ANOTHER: see phalanx verify"
    return f"{describe_chaos(report)}\nstorm  seed {verdict.seed}, digest {verdict.digest[:16]}: {outcome}"

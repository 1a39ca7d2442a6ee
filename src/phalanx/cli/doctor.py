"""``phalanx doctor``: check machines before training."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from phalanx.cli.options import TlsCa, TlsCert, TlsKey, TokenFile
from phalanx.doctor import Appointment, CheckFinding, Level, MachineFacts, attend, collect, judge_machine
from phalanx.errors import ConfigError
from phalanx.launch.env import read_credentials, wants_colour
from phalanx.transport import parse_address

_STYLES = {Level.GOOD: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}
_ABOUT = 13  # letters of the longest subject


def doctor(
    address: Annotated[
        str | None,
        typer.Argument(
            help="The address of the coordinator. Default: check this machine alone.",
            metavar="HOST:PORT",
            show_default=False,
        ),
    ] = None,
    *,
    machines: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Check the ways between N machines, too: run the same command on all of them at the same time. No "
            "coordinator need run; the machine that HOST is listens meanwhile.",
        ),
    ] = 1,
    run_dir: Annotated[Path, typer.Option(help="Where runs will be written: the disk is measured there.")] = Path(
        "runs"
    ),
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="How long to wait for the coordinator and the other machines. Default: 10, or 120 with --machines.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check this machine, the way to a coordinator, and the ways between machines.

    Each line is a finding: good, a warning or a problem, and what to do about it.
    Exit status 0: no problem, though there may be warnings. 1: at least one problem.
    """
    if address is None and machines != 1:
        raise ConfigError("--machines needs the HOST:PORT at which the machines meet: pass that of the coordinator")
    if not 1 <= machines <= 64:
        raise ConfigError(f"{machines} machines cannot be checked together: pass --machines 2 to 64, or leave it out")
    appointment = address and Appointment(
        address=parse_address(address),
        credentials=read_credentials(token_file, tls_cert, tls_key, tls_ca),
        machines=machines,
        timeout_s=timeout or (10.0 if machines == 1 else 120.0),
        say=lambda words: print(f"phalanx doctor: {words}", file=sys.stderr, flush=True),
    )
    facts = collect(run_dir)
    findings = []
    for finding in _examine(facts, appointment or None):
        findings.append(finding)
        if not as_json:
            _print(finding)
    counts = Counter(finding.level for finding in findings)
    if as_json:
        verdict = {"problems": counts[Level.PROBLEM], "warnings": counts[Level.WARNING]}
        print(msgspec.json.encode({**verdict, "findings": findings, "machine": facts}).decode())
    else:
        print(_sum_up(counts))
    raise typer.Exit(1 if counts[Level.PROBLEM] else 0)


def _examine(facts: MachineFacts, appointment: Appointment | None) -> Iterator[CheckFinding]:
    yield from judge_machine(facts)
    if appointment is not None:
        yield from attend(facts, appointment)


def _print(finding: CheckFinding) -> None:
    console = Console(no_color=not wants_colour(is_terminal=sys.stdout.isatty()), highlight=False, markup=False)
    console.print(f"{finding.level.value:8}", style=_STYLES[finding.level], end="")
    console.print(f"{finding.about:{_ABOUT}} {finding}", soft_wrap=True)
    sys.stdout.flush()


def _sum_up(counts: Counter[Level]) -> str:
    problems, warnings = counts[Level.PROBLEM], counts[Level.WARNING]
    if not problems and not warnings:
        return "all is well"
    words = [
        f"{count} {name}{'s' if count > 1 else ''}" for count, name in ((problems, "problem"), (warnings, "warning"))
    ]
    return " and ".join(word for word in words if not word.startswith("0 "))

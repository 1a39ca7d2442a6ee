"""``phalanx status``: show the state of a run."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from phalanx.cli.options import TlsCa, TlsCert, TlsKey, TokenFile
from phalanx.coordinator import look
from phalanx.errors import ConfigError, PhalanxError
from phalanx.launch.env import read_credentials
from phalanx.launch.running import find_runs
from phalanx.train.rundir import RunDir
from phalanx.transport import Credentials, Deadline, format_address, parse_address
from phalanx.wire import Address, Standing, Status


def status(
    target: Annotated[
        str | None,
        typer.Argument(
            help="The address of the coordinator, or the directory of a run of phalanx train. Default: all your runs "
            "on this machine.",
            metavar="HOST:PORT|RUN_DIR",
            show_default=False,
        ),
    ] = None,
    *,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for an answer.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the epoch, the step and every worker of a run, and who waits for whom.

    For runs that were started on this machine by you, the token is found; Linux only.
    """
    try:
        given = read_credentials(token_file, tls_cert, tls_key, tls_ca)
        known = find_runs()
        addresses = _find_addresses(target, known)
    except ConfigError as error:
        raise _refuse(error) from None
    failed = None
    for address in addresses:
        credentials = known.get(address, given) if given == Credentials() else given
        try:
            found = look(address, Deadline.after(timeout), credentials)
        except PhalanxError as error:  # one of several may have just ended
            failed = _refuse(error)
            continue
        if target is None and not as_json:
            print(f"{format_address(address)}: ", end="")
        _show(found, as_json=as_json)
    if failed:
        raise failed


def _refuse(error: PhalanxError) -> typer.Exit:
    print(f"phalanx status: {error}", file=sys.stderr)
    return typer.Exit(2 if isinstance(error, ConfigError) else 1)


def _find_addresses(target: str | None, known: Iterable[Address]) -> list[Address]:
    """Return the address that is meant, or that a run directory has, or all that are known."""
    if target is not None:
        return [parse_address(RunDir.open(Path(target)).read_address() if Path(target).is_dir() else target)]
    addresses = list(known)
    if not addresses:
        raise ConfigError("you have no run on this machine: pass the HOST:PORT of its coordinator, or its RUN_DIR")
    return addresses


def _show(status: Status, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(status).decode())
    else:
        _print(status)


def _print(status: Status) -> None:
    console = Console(markup=False)  # names that workers chose may look like markup
    words = f"epoch {status.epoch}, step {status.step}: {_printable(status.words)}"
    console.print(words, highlight=False, soft_wrap=True)
    if not status.workers:
        return
    table = Table(box=box.SIMPLE)
    for heading in ("rank", "worker", "device", "lanes", "heard", "waits for", "doing"):
        table.add_column(heading, justify="right" if heading in ("rank", "heard") else "left")
    for worker in status.workers:
        table.add_row(*map(_printable, _cells(worker)))
    console.print(table)


def _cells(worker: Standing) -> list[str]:
    lanes = f"{worker.lanes[0]} to {worker.lanes[1] - 1}" if worker.lanes and worker.lanes[0] < worker.lanes[1] else "-"
    waits_for = ", ".join(f"rank {rank}" for rank in worker.waits_for)
    doing = worker.doing or ("done with this step" if worker.is_done else "")
    return [
        "waits" if worker.rank is None else str(worker.rank),
        worker.name or f"pid {worker.pid}",
        worker.device or "-",
        lanes,
        f"{worker.silent_s:.1f} s ago",
        waits_for or "-",
        doing or "-",
    ]


def _printable(words: str) -> str:
    """Return text without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in words)

"""``phalanx status``: show the state of a run."""

import sys
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
from phalanx.transport import Deadline, parse_address
from phalanx.wire import Standing, Status


def status(
    address: Annotated[
        str, typer.Argument(help="The address of the coordinator.", metavar="HOST:PORT", show_default=False)
    ],
    *,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for an answer.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the epoch, the step and every worker of a run, and who waits for whom."""
    try:
        credentials = read_credentials(token_file, tls_cert, tls_key, tls_ca)
        found = look(parse_address(address), Deadline.after(timeout), credentials)
    except PhalanxError as error:
        print(f"phalanx status: {error}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        _print(found)


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

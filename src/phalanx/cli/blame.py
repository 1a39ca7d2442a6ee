"""``phalanx blame``: say who costs a run the most time, and by what."""

import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from phalanx.cli.options import TlsCa, TlsCert, TlsKey, TokenFile
from phalanx.coordinator import Awaited, ask_stacks, find_awaited, look
from phalanx.errors import ConfigError, DeadlineExceeded, PhalanxError
from phalanx.launch.env import read_credentials
from phalanx.launch.running import find_runs
from phalanx.telemetry import find_blame, read_workers, write_report
from phalanx.train.rundir import RunDir
from phalanx.transport import Credentials, Deadline, parse_address
from phalanx.wire import Address, Status

_BETWEEN_LOOKS_S = 1.0
_REFUSED = 2


def blame(
    target: Annotated[
        str,
        typer.Argument(
            help="The directory of a run, or the address of the coordinator of a run that hangs.",
            metavar="RUN_DIR|HOST:PORT",
            show_default=False,
        ),
    ],
    *,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for each answer.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; only for a RUN_DIR.")] = False,
) -> None:
    """Say which rank costs the most time and by what: slow compute, slow link, late data, garbage, checkpoints.

    From the directory of a run, that is what its workers have recorded. From the address of its coordinator, it is
    which rank the others wait for right now, and what the Python code of that rank does.
    """
    if Path(target).is_dir():
        _blame_records(RunDir(Path(target)), as_json=as_json)
        return
    try:
        where = parse_address(target)
        given = read_credentials(token_file, tls_cert, tls_key, tls_ca)
        credentials = find_runs().get(where, given) if given == Credentials() else given
        _blame_now(where, credentials, timeout)
    except PhalanxError as error:
        print(f"phalanx blame: {error}", file=sys.stderr)
        raise typer.Exit(_REFUSED if isinstance(error, ConfigError) else 1) from None


def _blame_records(run: RunDir, *, as_json: bool) -> None:
    report = find_blame(read_workers(run.telemetry))
    if report is None:
        raise ConfigError(f"no step in {run.telemetry} has records of all ranks: let the run take some steps")
    print(msgspec.json.encode(report).decode() if as_json else write_report(report))


def _blame_now(where: Address, credentials: Credentials, timeout_s: float) -> None:
    first = look(where, Deadline.after(timeout_s), credentials)
    time.sleep(_BETWEEN_LOOKS_S)
    status = look(where, Deadline.after(timeout_s), credentials)
    if status.step != first.step:
        words = f"the run goes on: it took {status.step - first.step} steps within {_BETWEEN_LOOKS_S:g} s"
        print(f"{words}; phalanx blame RUN_DIR says where their time goes")
    awaited = find_awaited(status)
    if awaited is None:
        print(f"nobody waits for another rank at step {status.step}: {status.words}")
        return
    print(_describe(awaited, status))
    try:
        print(f"    {ask_stacks(where, Deadline.after(timeout_s), credentials, awaited.rank)}")
    except DeadlineExceeded:
        print(f"rank {awaited.rank} does not answer: its process is stopped, or its machine does not respond")


def _describe(awaited: Awaited, status: Status) -> str:
    waiters = " and ".join(f"rank {rank}" for rank in awaited.waiters)
    (worker,) = [each for each in status.workers if each.rank == awaited.rank]
    verb = "waits" if len(awaited.waiters) == 1 else "wait"
    who = f"rank {awaited.rank} ({worker.name or f'pid {worker.pid}'})"
    return f"step {status.step}: {waiters} {verb} for {who}, heard of {worker.silent_s:.1f} s ago. Its Python code:"

"""``phalanx dashboard``: serve the live page of a run."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.options import LogDir, TokenFile
from phalanx.errors import ConfigError
from phalanx.launch.env import LOOPBACK, read_credentials
from phalanx.train.rundir import RunDir
from phalanx.transport import parse_address

_END_S = 5.0


def dashboard(
    run_dir: Annotated[
        Path,
        typer.Argument(help="The directory of a run that goes on or is over.", metavar="RUN_DIR", show_default=False),
    ],
    *,
    other: Annotated[
        Path | None,
        typer.Option("--with", metavar="RUN_DIR", help="Lay another run over this one.", show_default=False),
    ] = None,
    bind: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to serve the page; port 0 is any that is free.")
    ] = f"{LOOPBACK}:0",
    token_file: TokenFile = None,
    log_dir: LogDir = None,
    is_beside: Annotated[bool, typer.Option("--beside", hidden=True)] = False,
) -> None:
    """Serve a page that shows a run live: charts, what every rank does, who waits for whom, and what happened.

    Prints a link with a code that works once. Programs read /metrics and /status.json with the token of the run.
    """
    try:
        from phalanx.dashboard.server import serve  # noqa: PLC0415 - an extra
        from phalanx.dashboard.watch import Watch  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise ConfigError(f"the page needs {error.name}: pip install 'phalanx-train[dashboard]'") from None
    if is_beside:
        threading.Thread(target=_end_with_parent, name="phalanx-beside", daemon=True).start()
    watch = Watch(RunDir.open(run_dir), RunDir.open(other) if other else None, log_dir)
    token = read_credentials(token_file, None, None, None).token
    serve(watch, parse_address(bind), token or None, _announce)


@contextmanager
def page_beside(run: RunDir, log_dir: Path | None, *, as_json: bool) -> Iterator[None]:
    """Serve the page of a run in a process of its own during the block. Whatever happens to it, the run goes on."""
    command = [sys.executable, "-m", "phalanx", "dashboard", str(run.path), "--beside"]
    command += ["--log-dir", str(log_dir)] if log_dir else []
    process = subprocess.Popen(  # noqa: S603 - our own program
        command, stdin=subprocess.PIPE, stdout=sys.stderr if as_json else None, start_new_session=True
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin:
            process.stdin.close()


def _announce(link: str) -> None:
    print(f"page   {link}", flush=True)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()  # ends when the run does, however it ends
    signal.raise_signal(signal.SIGTERM)

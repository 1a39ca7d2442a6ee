"""The ``phalanx`` command: its subcommands, and how errors reach the terminal."""

import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated

import typer

import phalanx
from phalanx.cli import bench, checkpoint
from phalanx.cli.blame import blame
from phalanx.cli.chaos import chaos
from phalanx.cli.coordinator import coordinator, join, token
from phalanx.cli.dashboard import dashboard
from phalanx.cli.doctor import doctor
from phalanx.cli.explain import explain
from phalanx.cli.generate import generate, reproduce
from phalanx.cli.gradient_server import gradient_server
from phalanx.cli.log import log
from phalanx.cli.metrics import metrics
from phalanx.cli.plot import plot
from phalanx.cli.run import run
from phalanx.cli.status import status
from phalanx.cli.streams import standard_streams
from phalanx.cli.trace import trace
from phalanx.cli.train import train
from phalanx.cli.verify import verify
from phalanx.errors import ConfigError, OutOfResources

app = typer.Typer(
    help="Train one model on many workers: the same weights, bit for bit, however many workers there are.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(train)
app.command(context_settings={"allow_interspersed_args": False})(run)
app.command()(coordinator)
app.command()(join)
app.command()(doctor)
app.command()(dashboard)
app.command()(status)
app.command()(blame)
app.command()(trace)
app.command()(metrics)
app.command()(log)
app.command()(token)
app.command()(chaos)
app.command()(explain)
app.command()(verify)
app.command()(plot)
app.command()(generate)
app.command()(reproduce)
app.command()(gradient_server)
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command. A bad request or missing package is one line and exit status 2, a lack of resources status 1."""
    with standard_streams():
        try:
            _make_command()(prog_name="phalanx")
        except ConfigError as error:
            print(f"phalanx: {error}", file=sys.stderr)
            sys.exit(2)
        except OutOfResources as error:
            print(f"phalanx: {error}", file=sys.stderr)
            sys.exit(1)
        except ModuleNotFoundError as error:
            if error.name not in ("torch", "safetensors", "matplotlib"):
                raise
            print(f"phalanx: this command needs {error.name}: pip install 'phalanx-train[train]'", file=sys.stderr)
            sys.exit(2)


@cache  # typer reads the signatures of all subcommands, and tests call many commands in one process
def _make_command() -> Callable[..., object]:
    return typer.main.get_command(app)


def _print_version(is_wanted: bool) -> None:  # noqa: FBT001 - typer passes it by position
    if is_wanted:
        print(f"phalanx {phalanx.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    _: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass

"""``phalanx run``: run a script on several workers."""

import sys
from typing import Annotated

import typer

from phalanx.cli.options import LogDir, Patience, Stall
from phalanx.cli.streams import go_on_without_output
from phalanx.launch import local
from phalanx.launch.env import parse_over, read_times


def run(
    script: Annotated[
        str, typer.Argument(help="The Python script to run on every worker.", show_default=False, metavar="SCRIPT")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Passed to the script, options included.", show_default=False, metavar="ARGS"),
    ] = None,
    *,
    workers: Annotated[int, typer.Option("-n", "--workers", help="How many workers to start.")] = 2,
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is the name of a module.")] = False,
    over: Annotated[
        str, typer.Option(metavar="auto|tcp", help="Move data through shared memory where possible, or by TCP only.")
    ] = "auto",
    hosts: Annotated[
        int, typer.Option(help="Spread the workers over this many simulated machines, which share no memory.")
    ] = 1,
    log_dir: LogDir = None,
    patience: Patience = None,
    stall: Stall = None,
) -> None:
    """Start a script on several workers of this machine.

    In the script, [bold]phalanx.connect()[/bold] returns the group of all workers.
    Each line of output begins with the rank that wrote it. When a worker fails,
    phalanx stops the others, prints the traceback of the worker that failed first,
    and exits with the status of that worker.

    Options of phalanx come before the script, options of the script after it:
    phalanx run -n 4 train.py --steps 100
    """
    go_on_without_output(unread=False)
    patience_s, stall_s = read_times(patience, stall)
    program = local.Program(
        name=script,
        arguments=tuple(arguments or ()),
        is_module=module,
        workers=workers,
        hosts=hosts,
        over=parse_over(over, "--over"),
        patience_s=patience_s,
        stall_s=stall_s,
        log_dir=log_dir,
    )
    sys.exit(local.run(program))

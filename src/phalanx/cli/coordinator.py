"""``phalanx coordinator``, ``join`` and ``token``: run a group on several machines."""

import logging
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.options import LogDir, Patience, Stall, TlsCa, TlsCert, TlsKey, TokenFile
from phalanx.cli.reachable import reachable
from phalanx.cli.streams import go_on_without_output
from phalanx.cli.train_join import LONGEST_WAIT_S, WORKER, join_training
from phalanx.coordinator import Coordinator, EventLog, Journal, Terms, look, parse_workers
from phalanx.errors import ConfigError, ConnectError, MembershipError, ProtocolError, TransportError
from phalanx.launch import local
from phalanx.launch.crew import Signals
from phalanx.launch.env import parse_over, read_credentials, read_times
from phalanx.telemetry import RecordCollector
from phalanx.transport import Credentials, Deadline, format_address, make_token, parse_address
from phalanx.wire import Address

_LOOK_S = 0.2  # how soon a signal is noticed
_FIRST_LOOK_S = 3.0
_COPIES = Path("phalanx-data")


def coordinator(
    *,
    bind: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes any free one.")],
    workers: Annotated[
        str,
        typer.Option(
            metavar="N|MIN:MAX",
            help="How many workers to wait for. MIN:MAX begins with MIN workers and admits more, between steps.",
        ),
    ],
    first: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With MIN:MAX: wait for so many workers at the start, for up to 12 times the patience.",
            show_default=False,
        ),
    ] = None,
    token_file: TokenFile = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="Record the run in this file; if it exists, continue that run.", show_default=False),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(
            help="Append to this file what happens to the run: joins, losses, epochs, recoveries. phalanx explain "
            "reads it, under the name events.jsonl.",
            show_default=False,
        ),
    ] = None,
    telemetry: Annotated[
        Path | None,
        typer.Option(
            help="Write to this folder what workers record that cannot write to the run directory themselves.",
            show_default=False,
        ),
    ] = None,
    patience: Patience = None,
    stall: Stall = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Run the coordinator of a group, for workers on several machines.

    Start it on a machine that all others can reach, then start workers
    with [bold]phalanx join[/bold]. When all workers have left, it waits for the next
    group, until Ctrl-C. If the workers train in steps, it ends with their run.
    Other machines need a token: make one with phalanx token > FILE and copy the
    file to all of them.
    """
    go_on_without_output()
    minimum, maximum = parse_workers(workers)
    patience_s, stall_s = read_times(patience, stall)
    terms = replace(
        Terms.exactly(None, patience_s=patience_s, stall_s=stall_s), minimum=minimum, maximum=maximum, first=first
    )
    credentials = read_credentials(token_file, tls_cert, tls_key, tls_ca)
    where = parse_address(bind)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    with ExitStack() as closing:
        kept = closing.enter_context(Journal(journal)) if journal else None
        if kept and kept.past.ended is not None:
            raise ConfigError(f"the run in {journal} is over: {kept.past.ended}; name another journal for a new run")
        noted = closing.enter_context(EventLog(events)) if events else None
        records = RecordCollector(telemetry) if telemetry else None
        if records:
            closing.callback(records.close)
        signals = closing.enter_context(Signals())
        serving = closing.enter_context(
            Coordinator(
                where.host,
                where.port,
                terms=terms,
                credentials=credentials,
                journal=kept,
                events=noted,
                records=records,
            )
        )
        _announce(serving.address, credentials, terms)
        while not serving.wait_until_over(_LOOK_S):
            if signals.received:
                sys.exit(128 + signals.received[0])
        print(f"phalanx: the run is over: {serving.ended}")
        sys.exit(1 if serving.has_halted else 0)


def join(
    address: Annotated[
        str, typer.Argument(help="The address of the coordinator.", metavar="HOST:PORT", show_default=False)
    ],
    script: Annotated[
        str | None,
        typer.Argument(
            help="The Python script to run; none to train in the run of phalanx train.",
            metavar="SCRIPT",
            show_default=False,
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Passed to the script.", metavar="ARGS", show_default=False),
    ] = None,
    *,
    workers: Annotated[int, typer.Option("-n", "--workers", help="How many workers to start here.")] = 1,
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is the name of a module.")] = False,
    over: Annotated[
        str, typer.Option(metavar="auto|tcp", help="Move data through shared memory where possible, or by TCP only.")
    ] = "auto",
    data: Annotated[
        Path | None,
        typer.Option(
            help="Without a SCRIPT: where the data is on this machine. Default: as the config of the run says."
        ),
    ] = None,
    data_from_peers: Annotated[
        bool,
        typer.Option(
            "--data-from-peers",
            help="Without a SCRIPT: copy the data from the machine that started the run, into phalanx-data/.",
        ),
    ] = False,
    log_dir: LogDir = None,
    token_file: TokenFile = None,
    patience: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="How soon these workers notice that a machine or its network is gone. Default: PHALANX_PATIENCE, or "
            "as the coordinator says.",
            show_default=False,
        ),
    ] = None,
    stall: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="How long these workers wait for a worker that does nothing. Default: PHALANX_STALL, or as the "
            "coordinator says.",
            show_default=False,
        ),
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    mishaps: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="How long workers hang when phalanx chaos asks for that.", hidden=True),
    ] = None,
) -> None:
    """Start workers of this machine that join a coordinator's group or run.

    Without a script they train in the run of phalanx train: its config, weights
    and state come over the network, and the data must be the same. A worker that
    dies is replaced. Ctrl-C or SIGTERM lets them leave; the run goes on.

    In a script, [bold]phalanx.connect()[/bold] returns the group of all workers on
    all machines. Put two dashes between the options of phalanx and the script:
    phalanx join 10.0.0.5:7000 -n 2 --token-file FILE -- train.py --steps 100
    """
    go_on_without_output(unread=False)
    patience_s, stall_s = read_times(patience, stall)
    if script is None and module:
        raise ConfigError("-m names a module: pass its name, or leave -m out to train in the run of phalanx train")
    if script is not None and (data is not None or data_from_peers):
        raise ConfigError("--data and --data-from-peers are for phalanx train: a script finds its data itself")
    if data is not None and data_from_peers:
        raise ConfigError(f"--data-from-peers copies the data into {_COPIES}: leave out --data")
    program = local.Program(
        name=WORKER if script is None else script,
        arguments=tuple(arguments or ()),
        is_module=module or script is None,
        workers=workers,
        over=parse_over(over, "--over"),
        patience_s=patience_s,
        stall_s=stall_s,
        log_dir=log_dir,
    )
    credentials = read_credentials(token_file, tls_cert, tls_key, tls_ca)
    where = parse_address(address)
    try:
        _wait_for_coordinator(where, credentials)
        if script is None:
            copies = _COPIES if data_from_peers else None
            sys.exit(join_training(program, where, credentials, data, copies, mishaps))
    except (TransportError, ProtocolError, MembershipError) as error:
        print(f"phalanx join: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(local.join(program, where, credentials))


def token() -> None:
    """Print a new token. Keep it in a file that only you can read.

    (umask 077; phalanx token > token), then copy that file to every machine.
    """
    print(make_token())


def _wait_for_coordinator(where: Address, credentials: Credentials) -> None:
    """Return when the coordinator answers. So a wrong token or address is one line here, not a traceback per worker."""
    if where.port == 0:
        raise ConfigError("no coordinator listens on port 0: pass the port that it printed when it was started")
    try:
        look(where, Deadline.after(_FIRST_LOOK_S), credentials)
    except ConnectError as error:
        print(f"phalanx join: {error} Waiting up to {LONGEST_WAIT_S:g} s for it.", file=sys.stderr, flush=True)
        look(where, Deadline.after(LONGEST_WAIT_S), credentials)


def _announce(address: Address, credentials: Credentials, terms: Terms) -> None:
    here = format_address(reachable(address))
    count = f"{terms.minimum}" if terms.minimum == terms.maximum else f"{terms.minimum} to {terms.maximum}"
    print(f"phalanx: listening on {format_address(address)} for {count} workers", flush=True)
    proof = " --token-file FILE" if credentials.token else ""
    proof += " --tls-cert FILE --tls-key FILE --tls-ca FILE" if credentials.tls else ""
    print(f"phalanx: start workers with: phalanx join {here} -n 2{proof} -- script.py", flush=True)

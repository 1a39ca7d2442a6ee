"""Training in the run of somebody else: what ``phalanx join`` does without a script."""

import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

import phalanx
from phalanx.coordinator import ask_about, look
from phalanx.errors import ConfigError, ConnectError, DeadlineExceeded, PhalanxError
from phalanx.launch import local
from phalanx.launch.env import Launch
from phalanx.train import require_torch
from phalanx.train.config import Config
from phalanx.train.config_text import format_config, parse_config
from phalanx.train.data import Corpus, open_corpus
from phalanx.train.data_share import fetch
from phalanx.train.description import RunDescription, check_same, decode_description, describe_run
from phalanx.train.rundir import RunDir, environment
from phalanx.transport import Credentials, Deadline, format_address, parse_address
from phalanx.wire import Address

WORKER = "phalanx.cli.train_worker"
"""The module that a worker of ``phalanx train`` runs."""

LONGEST_WAIT_S = 300.0
"""How long a worker waits for a coordinator, or for somebody who tells what the run is."""

_ANSWER_S = 10.0
_NAP_S = 0.2
_MOST_LOSSES = 4  # of the state of the run, without a step between
GRACE_S = 120.0
"""How long workers may take to finish a step and to save a checkpoint."""


def join_training(
    program: local.Program,
    where: Address,
    credentials: Credentials,
    data: Path | None,
    copies: Path | None,
    mishaps_s: float | None = None,
) -> int:
    """Train in the run of the coordinator at ``where`` with workers of this machine, and return the exit status.

    ``data`` is where the data is on this machine, and ``copies`` the folder to copy it to if it is to be copied. The
    workers let mishaps happen if ``mishaps_s`` says how long they then hang.
    """
    require_torch()
    theirs = wait_for_description(where, credentials)
    if copies is not None:
        offers = [parse_address(each) for each in theirs.offers_data]
        data = fetch(offers, theirs.data, credentials, copies)
        print(f"copied {data}", flush=True)
    config = _localize(theirs, data)
    corpus = _open(config, theirs)
    check_same(describe_here(config, corpus, theirs.run), theirs)
    facts = environment(version=phalanx.__version__, threads=theirs.threads, device=theirs.device)
    with TemporaryDirectory(prefix="phalanx-join-") as folder:
        run = RunDir.create(Path(folder, "run"), format_config(config), facts)
        arguments = (
            str(run.path),
            "--guest",
            theirs.directory,
            *([] if mishaps_s is None else ["--mishaps", f"{mishaps_s}"]),
        )
        guest = replace(program, arguments=arguments, grace_s=GRACE_S, stop_signal=signal.SIGTERM, may_leave=True)
        member = Launch.joining(where, credentials, (program.patience_s, program.stall_s), program.over)
        more = f"{program.workers} more worker{'s' if program.workers > 1 else ''}"
        print(f"data   {corpus.describe()}\nrun    that of {format_address(where)}, {more}", flush=True)
        progress, losses, lost_at = _Progress(where, credentials), 0, None
        while True:
            ending = local.supervise(
                guest, [member] * program.workers, guest, progress.count_steps, has_others=lambda _: True
            )
            losses, lost_at = losses + 1 if progress.steps == lost_at else 1, progress.steps
            if not ending.is_lost or losses >= _MOST_LOSSES:
                return ending.status
            words = "the state of the run was lost with its workers: waiting for the run to go on from a checkpoint"
            print(f"phalanx join: {words}", file=sys.stderr, flush=True)
            _wait_for_coordinator(where, credentials)


def wait_for_description(where: Address, credentials: Credentials) -> RunDescription:
    """Return what the run is, when somebody has told the coordinator."""
    deadline, has_waited = Deadline.after(LONGEST_WAIT_S), False
    while True:
        facts = ask_about(where, Deadline.after(min(_ANSWER_S, deadline.remaining_s())), credentials)
        if facts is not None:
            return decode_description(facts)
        words = f"nobody has told the coordinator at {format_address(where)} what the run is"
        if deadline.remaining_s() <= _NAP_S:
            raise DeadlineExceeded(f"{words} for {LONGEST_WAIT_S:g} s: start phalanx train, or name a SCRIPT")
        if not has_waited:
            has_waited = True
            words += f". Waiting up to {LONGEST_WAIT_S:g} s for phalanx train; if the workers run a script, name it."
            print(f"phalanx join: {words}", file=sys.stderr, flush=True)
        time.sleep(_NAP_S)


def _wait_for_coordinator(where: Address, credentials: Credentials) -> None:
    """Return when a coordinator listens again and somebody has told it what the run is; the one before has ended."""
    deadline = Deadline.after(LONGEST_WAIT_S)
    while not deadline.has_passed:
        with suppress(ConnectError):
            wait_for_description(where, credentials)
            return
        time.sleep(_NAP_S)
    raise DeadlineExceeded(f"no coordinator listens at {format_address(where)}: look at phalanx train there")


def describe_here(config: Config, corpus: Corpus, run: str, directory: Path | None = None) -> RunDescription:
    """Return what this machine would train, and in which ``directory`` it would save that."""
    from phalanx.train.loop import choose_device  # noqa: PLC0415 - it imports torch, which takes seconds

    device = choose_device(config.run.device).type
    described = describe_run(config, corpus, run=run, version=phalanx.__version__, device=device)
    where = f"{directory.resolve()} on {socket.gethostname()}" if directory else ""
    return msgspec.structs.replace(described, directory=where)


def _localize(theirs: RunDescription, data: Path | None) -> Config:
    """Return the config of the run, with the path of the data on this machine."""
    settings = [] if data is None else [f"data.path={msgspec.json.encode(str(data)).decode()}"]
    return parse_config(theirs.config, settings, source="the config of the run")


def _open(config: Config, theirs: RunDescription) -> Corpus:
    try:
        return open_corpus(config.data)
    except ConfigError as error:
        words = f"this machine lacks the data of the run, which is {theirs.data} there"
        raise ConfigError(f"{words}: {error}; copy it here and pass --data PATH, or pass --data-from-peers") from error


class _Progress:
    """How many steps a run has taken, as its coordinator says."""

    def __init__(self, where: Address, credentials: Credentials) -> None:
        self._where = where
        self._credentials = credentials
        self.steps = 0
        """The last number that is known."""

    def count_steps(self) -> int:
        """Return the number, or the last one that is known."""
        with suppress(PhalanxError):
            self.steps = look(self._where, Deadline.after(_NAP_S + 1), self._credentials).step
        return self.steps

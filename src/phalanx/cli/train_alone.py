"""``phalanx train --coordinator``: this process is one worker of a run, whatever has started it."""

import secrets
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import phalanx
from phalanx.cli.train_join import describe_here
from phalanx.cli.train_show import show_end
from phalanx.coordinator import ask_about
from phalanx.errors import ConfigError, PhalanxError
from phalanx.launch.env import Launch
from phalanx.launch.supervision import LEFT
from phalanx.train.config import Config
from phalanx.train.config_text import format_config
from phalanx.train.data import open_corpus
from phalanx.train.description import check_same, decode_description, encode_description
from phalanx.train.rundir import RunDir, environment
from phalanx.transport import Credentials, Deadline
from phalanx.wire import Address

_ANSWER_S = 300.0
_MAKING_S, _NAP_S = 5.0, 0.05  # while another worker makes the directory
_REFUSED = 2

Times = tuple[float | None, float | None]


def train_alone(config: Config, where: Address, credentials: Credentials, times: Times) -> int:
    """Train as one worker of the run of the coordinator at ``where``, and return the exit status.

    All workers that see the same directory can keep the run. The first worker says what the run is and which directory
    it is in, by a word that is written there.
    """
    if config.run.directory is None:
        raise ConfigError("--coordinator needs --run-dir: workers find out by it who can keep the run")
    corpus = open_corpus(config.data)
    shared = _share(config)
    known = ask_about(where, Deadline.after(_ANSWER_S), credentials)
    if known is None and shared.steps.exists():
        words = f"{shared.path} has the steps of another run"
        raise ConfigError(f"{words}: name another directory, or continue that run with phalanx train --resume")
    own = describe_here(config, corpus, shared.read_word(), shared.path)
    facts = ask_about(where, Deadline.after(_ANSWER_S), credentials, encode_description(own))
    theirs = decode_description(facts or b"")
    check_same(own, theirs)
    with ExitStack() as stack:
        can_keep = own.run == theirs.run
        run = shared
        if can_keep:
            stack.enter_context(shared.hold(is_shared=True))
        else:
            folder = stack.enter_context(TemporaryDirectory(prefix="phalanx-train-"))
            run = RunDir.create(Path(folder, "run"), format_config(config), _facts(config))
        launch = Launch.joining(where, credentials, times)
        return _work(run, config, launch, "" if can_keep else theirs.directory, can_keep=can_keep)


def _work(run: RunDir, config: Config, launch: Launch, home: str, *, can_keep: bool) -> int:
    from phalanx.cli.train_work import work  # noqa: PLC0415 - it imports torch, which takes seconds

    try:
        if not work(
            run,
            launch=launch,
            can_keep=can_keep,
            home=home,
            conclude=lambda: show_end(run, config, None, as_json=False),
        ):
            return LEFT
    except PhalanxError as error:
        print(f"{type(error).__module__}.{type(error).__name__}: {error}", file=sys.stderr)
        return _REFUSED if isinstance(error, ConfigError) else 1
    return 0


def _share(config: Config) -> RunDir:
    """Return the run directory, which this worker or another one has made."""
    path = Path(config.run.directory or "")
    try:
        run = RunDir.create(path, format_config(config), _facts(config))
    except ConfigError as error:
        run, deadline = RunDir(path), Deadline.after(_MAKING_S)
        while not run.word.exists():
            if deadline.has_passed:
                raise error from None
            time.sleep(_NAP_S)
        return run
    run.write_word(secrets.token_hex(8))
    return run


def _facts(config: Config) -> dict[str, str | int]:
    return environment(
        version=phalanx.__version__, threads=config.run.threads_per_worker, device=config.run.device.value
    )

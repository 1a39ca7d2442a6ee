"""Where workers of other machines join the run of ``phalanx train``."""

import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import msgspec

from phalanx.cli.reachable import reachable
from phalanx.cli.train_join import describe_here
from phalanx.coordinator import ask_about, look
from phalanx.errors import ConfigError, PhalanxError
from phalanx.train.config import Config, Transport
from phalanx.train.data import Corpus
from phalanx.train.data_share import DataShare
from phalanx.train.description import encode_description
from phalanx.transport import Credentials, Deadline, format_address, is_loopback
from phalanx.wire import Address

_ANSWER_S = 10.0
_LOOK_S = 2.0


class Venue:
    """The address at which the coordinator of a run listens, and how many workers start on this machine.

    The run begins when the ``first`` workers are there. ``proof`` are the options with which others prove themselves.
    How to join is printed to ``out``.
    """

    def __init__(
        self, bind: Address, local: int, first: int, credentials: Credentials, proof: Sequence[str], out: TextIO
    ) -> None:
        if credentials.token is None and not is_loopback(bind.host):
            words = f"{format_address(bind)} is reachable from other machines, and without a token anybody could join"
            raise ConfigError(f"{words}: make one with `phalanx token > FILE` and pass --token-file FILE")
        self.bind = bind
        self.local = local
        self.first = first
        self.credentials = credentials
        self._proof = list(proof)
        self._out = out
        self._facts = b""
        self._is_announced = False

    def describe(self, config: Config, corpus: Corpus, run: str, directory: Path, share: DataShare) -> None:
        """Find out what to tell those who want to join. They can get the data from ``share``."""
        described = describe_here(config, corpus, run, directory)
        offers = (format_address(reachable(share.address)),)
        self._facts = encode_description(msgspec.structs.replace(described, offers_data=offers))

    def open(self, address: Address) -> None:
        """Tell the coordinator at ``address`` what the run is, and people how to join it."""
        self.bind = address  # also for the next coordinator, if this one has to be replaced
        ask_about(reachable(address), Deadline.after(_ANSWER_S), self.credentials, self._facts)
        if not self._is_announced:
            self._is_announced = True
            words = ["phalanx join", format_address(reachable(address)), "-n 2", *self._proof]
            print(f"others {' '.join(words)}", file=self._out, flush=True)

    def has_others(self, pids: Collection[int]) -> bool:
        """Return whether others than these processes are in the run. They may be if the coordinator does not answer."""
        with suppress(PhalanxError):
            found = look(reachable(self.bind), Deadline.after(_LOOK_S), self.credentials)
            here = socket.gethostname()
            return any(each.pid not in pids or each.name.partition(":")[0] != here for each in found.workers)
        return True


def choose_range(config: Config, least: int | None, local: int | None, first: int | None) -> tuple[int, int]:
    """Return how many workers start on this machine, and with how many the run begins.

    ``least`` is the MIN of ``--workers``, and the others are options. What makes no sense is a ConfigError.
    """
    least = config.run.min_workers if least is None else least
    local = least if local is None else local
    first = max(local, config.run.min_workers) if first is None else first
    if not 1 <= local <= config.run.workers:
        words = f"{local} workers on this machine are not within 1 to {config.run.workers}, the most of the run"
        raise ConfigError(f"{words}: pass another --local, or more --workers")
    if not config.run.min_workers <= first <= config.run.workers:
        words = f"a run of {config.run.min_workers} to {config.run.workers} workers cannot begin with {first}"
        raise ConfigError(f"{words}: pass another --first, or leave it out")
    if config.run.transport in (Transport.STAR, Transport.ARENA):
        name = config.run.transport.value
        raise ConfigError(f"workers of several machines cannot use --transport {name}: pass auto or tcp")
    return local, first


def format_proof(token_file: Path | None, credentials: Credentials) -> list[str]:
    """Return the options with which others prove themselves; files may have other names on their machines."""
    proof = [f"--token-file {token_file or 'FILE'}"] if credentials.token else []
    return [*proof, "--tls-cert FILE --tls-key FILE --tls-ca FILE"] if credentials.tls else proof

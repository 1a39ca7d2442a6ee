"""The process of one worker of ``phalanx train``."""

import argparse
import sys
from pathlib import Path

import torch

from phalanx.cli.train_work import work
from phalanx.errors import ConfigError, JoinRefused, PhalanxError, StateLost
from phalanx.launch.mishaps import allow_mishaps
from phalanx.launch.supervision import LEFT, LOST
from phalanx.train.rundir import RunDir
from phalanx.transport import parse_address

_REFUSED = 2


def prepare() -> None:
    """Let torch import what it imports when the first optimizer is made: 800 modules, which take seconds."""
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])


def main() -> None:
    """Train. If that fails, print one line that says why."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--from-step", type=int)
    parser.add_argument("--star", type=parse_address)
    parser.add_argument("--store", help="the file by which workers over torch.distributed find each other")
    parser.add_argument("--guest", metavar="DIRECTORY", help="cannot keep the run: its directory is elsewhere, there")
    parser.add_argument("--mishaps", type=float, metavar="SECONDS", help="how long to hang when that is asked for")
    given = parser.parse_args()
    if given.mishaps is not None:
        allow_mishaps(given.mishaps)
    try:
        run = RunDir.open(given.run)
        can_keep, home = given.guest is None, given.guest or ""
        if not work(run, given.from_step, given.star, store=given.store, can_keep=can_keep, home=home):
            sys.exit(LEFT)
    except PhalanxError as error:
        if isinstance(error, JoinRefused) and "the run is over" in str(error):
            return  # the others have finished without it
        print(f"{type(error).__module__}.{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(_REFUSED if isinstance(error, ConfigError) else LOST if isinstance(error, StateLost) else 1)


if __name__ == "__main__":
    main()

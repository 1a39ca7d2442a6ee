"""One worker of ``phalanx train``, which starts it with the run directory as argument."""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from phalanx.errors import PhalanxError
from phalanx.train.rundir import RunDir
from phalanx.transport import parse_address

_INTERRUPTED = 130


class _Wish:
    """Whether somebody asked this worker to stop; asked twice, it ends at once."""

    def __init__(self) -> None:
        self.is_there = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._hear)

    def _hear(self, number: int, _: FrameType | None) -> None:
        self.is_there = True
        signal.signal(number, signal.default_int_handler)


def main() -> None:
    """Train, and say in one line why if that did not work out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--from-step", type=int)
    parser.add_argument("--star", type=parse_address)
    given = parser.parse_args()
    wish = _Wish()
    try:
        from phalanx.cli.train_work import work  # noqa: PLC0415 - it takes seconds, in which signals are heard

        work(RunDir.open(given.run), given.from_step, given.star, lambda: wish.is_there)
    except PhalanxError as error:
        print(f"{type(error).__module__}.{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:  # asked twice
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()

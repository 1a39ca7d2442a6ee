"""The process of one worker of ``phalanx train``."""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from phalanx.errors import PhalanxError
from phalanx.train.rundir import RunDir
from phalanx.transport import parse_address

_INTERRUPTED = 130


class _StopRequest:
    """Remembers whether this worker was asked to stop. A second request ends it at once."""

    def __init__(self) -> None:
        self.was_made = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.was_made = True
        signal.signal(number, signal.default_int_handler)


def main() -> None:
    """Train. If that fails, print one line that says why."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--from-step", type=int)
    parser.add_argument("--star", type=parse_address)
    given = parser.parse_args()
    stop = _StopRequest()
    try:
        from phalanx.cli.train_work import work  # noqa: PLC0415 - it takes seconds, during which signals must be handled

        work(RunDir.open(given.run), given.from_step, given.star, lambda: stop.was_made)
    except PhalanxError as error:
        print(f"{type(error).__module__}.{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:  # asked twice
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()

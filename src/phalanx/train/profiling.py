"""Profiling some steps of one worker with torch's own profiler, into a file that ``phalanx trace`` merges."""

import logging
from pathlib import Path
from typing import Self

import torch

_log = logging.getLogger("phalanx")


class StepProfiler:
    """Profiles what this process does in ``steps``, and writes it to one file. Without steps it does nothing.

    No step depends on it: if the file cannot be written, a warning says so, and the run continues.
    """

    def __init__(self, path: Path, steps: range = range(0)) -> None:
        self._path = path
        self._steps = steps
        self._profile: torch.profiler.profile | None = None

    def before(self, step: int) -> None:
        """Say which step comes next: profiling begins before the first of the steps, and ends behind the last."""
        if step in self._steps and self._profile is None:
            self._profile = torch.profiler.profile()
            self._profile.start()
        elif step not in self._steps:
            self.close()

    def close(self) -> None:
        """Write the file, if profiling has begun. Closing twice is harmless."""
        profile, self._profile = self._profile, None
        if profile is None:
            return
        profile.stop()
        beside = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(beside))
            beside.replace(self._path)
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError where it cannot open a file
            _log.warning("cannot write the profile %s: %s; the run continues without it", self._path, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""Finds the runs of this user on this machine: the environment of a worker says where its coordinator is."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from phalanx.errors import ConfigError
from phalanx.launch.env import find_credentials, find_launch
from phalanx.transport import Credentials
from phalanx.wire import Address

_PROCESSES = Path("/proc")  # Linux only: elsewhere there is no such folder, and no run is found


def find_runs(processes: Path = _PROCESSES) -> dict[Address, Credentials]:
    """Return the coordinators of all workers that this user has on this machine, and the credentials of their runs."""
    found: dict[Address, Credentials] = {}
    for environ in _environs(processes):
        if "PHALANX_JOB" not in environ:  # our launchers set it for every worker
            continue
        with suppress(ConfigError):  # variables that somebody else has set, or files that are gone
            launch = find_launch(environ)
            if launch and not launch.is_hosted:
                found.setdefault(launch.coordinator[0], find_credentials(environ))
    return found


def _environs(processes: Path) -> Iterator[Mapping[str, str]]:
    for folder in sorted(processes.glob("[0-9]*")):
        with suppress(OSError):  # it has ended, or belongs to somebody else
            entries = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            yield dict(entry.split("=", 1) for entry in entries if "=" in entry)

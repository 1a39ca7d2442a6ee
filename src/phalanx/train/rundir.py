"""The directory of a run, which holds all its files."""

import contextlib
import fcntl
import importlib.metadata
import platform
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec

from phalanx.errors import ConfigError
from phalanx.plain_file import open_plain, read_plain
from phalanx.train.config import Config
from phalanx.train.config_text import parse_config
from phalanx.train.record import Result

_MOST_BYTES = 2**20  # of a config or a result
_LOCKS = Path("/proc/locks")


@dataclass(frozen=True, slots=True)
class RunDir:
    """The directory of a run, and the paths of its files."""

    path: Path

    @classmethod
    def create(cls, path: Path | None, config_text: str, environment: Mapping[str, str | int]) -> Self:
        """Make the directory of a new run, with its config and environment. Without a path, make a new one in ``runs``.

        If that fails, nothing of the run is left in it. Of several processes that make a run in the same directory at
        the same time, one succeeds.
        """
        run = cls(path or Path("runs") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}")
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            if any(run.path.iterdir()) or not run._write(config_text, environment):
                words = f"{run.path} is not empty: name another directory"
                raise ConfigError(f"{words}, or continue the run in it with --resume {run.path}")
        except OSError as error:
            raise ConfigError(f"cannot write to {run.path}: {error.strerror}; name another run directory") from error
        return run

    @classmethod
    def open(cls, path: Path) -> Self:
        """Return the directory of an existing run."""
        run = cls(path)
        try:
            run.config.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConfigError(f"there is no run in {path}: name a directory that phalanx train has made") from error
        except OSError as error:
            raise ConfigError(f"cannot read {run.config}: {error.strerror}; fix that, then try again") from error
        return run

    @property
    def config(self) -> Path:
        """The config, with every key."""
        return self.path / "config.toml"

    @property
    def environment(self) -> Path:
        """The versions and the machine of the run; see ``environment``."""
        return self.path / "environment.json"

    @property
    def steps(self) -> Path:
        """The log, with one line for each step."""
        return self.path / "steps.jsonl"

    @property
    def events(self) -> Path:
        """What happened to the run: its joins, losses, epochs and recoveries, as the coordinator wrote them down."""
        return self.path / "events.jsonl"

    @property
    def telemetry(self) -> Path:
        """The folder in which every worker writes what it did when."""
        return self.path / "telemetry"

    @property
    def profiles(self) -> Path:
        """The folder of what torch's profiler found on every worker, if somebody asked for it."""
        return self.path / "profile"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def sample(self) -> Path:
        """Text that the trained model wrote."""
        return self.path / "sample.txt"

    @property
    def result(self) -> Path:
        """The figures of the finished run."""
        return self.path / "result.json"

    @property
    def fence(self) -> Path:
        """The file that says which epoch's worker may write; see ``Fence``."""
        return self.path / ".keeper"

    @property
    def journal(self) -> Path:
        """The journal of the coordinator."""
        return self.path / "journal"

    @property
    def coordinator_log(self) -> Path:
        """What the coordinator has logged."""
        return self.path / "coordinator.log"

    @property
    def address(self) -> Path:
        """Where the coordinator listens, as long as the run goes on."""
        return self.path / "coordinator.address"

    @property
    def chaos(self) -> Path:
        """What happened to the run on purpose, with ``--chaos``."""
        return self.path / "chaos.json"

    @property
    def word(self) -> Path:
        """A word of the run's own, by which workers tell whether they see the same directory."""
        return self.path / ".run"

    @property
    def halts(self) -> Path:
        """The folder of bundles, from which a lane that halted the run can be computed again."""
        return self.path / "halts"

    @contextlib.contextmanager
    def hold(self, *, is_shared: bool = False) -> Iterator[None]:
        """Lock the directory, so that nobody else trains in it, until the block or this process ends.

        Workers of one run that nobody supervises hold it together: ``is_shared``.
        """
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(open_plain(self.environment, "ab"))
                fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(
                    f"another process is training in {self.path}: stop it, or wait until it ends"
                ) from error
            except OSError as error:
                raise self._refusal(error) from error
            yield

    @property
    def is_held(self) -> bool:
        """Whether a process of this machine trains in the directory. Nothing is locked to find out; only on Linux."""
        try:
            inode = f":{self.environment.stat().st_ino} "
            return any("FLOCK" in lock and inode in lock for lock in _LOCKS.read_text(encoding="ascii").splitlines())
        except OSError:
            return False

    def record(self, environment: Mapping[str, str | int]) -> None:
        """Write the present environment of the run."""
        try:  # in place: the lock of the directory is on this file
            self.environment.write_bytes(_format(environment))
        except OSError as error:
            raise self._refusal(error) from error

    def change_config(self, text: str) -> None:
        """Replace the config. If that fails, the old one stays."""
        try:
            _replace(self.config, text.encode())
        except OSError as error:
            raise self._refusal(error) from error

    def write_word(self, word: str) -> None:
        """Write the run's own word, all of it or nothing."""
        try:
            _replace(self.word, word.encode())
        except OSError as error:
            raise self._refusal(error) from error

    def read_word(self) -> str:
        """Return the run's own word."""
        try:
            return read_plain(self.word, _MOST_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {self.word}: name another run directory") from error

    @contextlib.contextmanager
    def announce(self, address: str) -> Iterator[None]:
        """Let people find the coordinator, which listens at ``address`` during the block."""
        _replace(self.address, f"{address}\n".encode())
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                self.address.unlink(missing_ok=True)

    def read_address(self) -> str:
        """Return where the coordinator listens; ConfigError if the run does not go on."""
        try:
            return read_plain(self.address, _MOST_BYTES).decode().strip()
        except FileNotFoundError:
            raise ConfigError(f"the run in {self.path} has no coordinator now: it is over, or just begins") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {self.address}: pass HOST:PORT instead") from error

    def write_result(self, result: Result) -> None:
        """Write the result, all of it or nothing. OSError if that fails."""
        _replace(self.result, msgspec.json.encode(result))

    def write_chaos(self, chaos: msgspec.Struct) -> None:
        """Write what happened to the run on purpose."""
        _replace(self.chaos, msgspec.json.format(msgspec.json.encode(chaos)))

    def read_result(self) -> Result:
        """Return the result of a finished run."""
        try:
            return msgspec.json.decode(read_plain(self.result, _MOST_BYTES), type=Result)
        except OSError as error:
            raise ConfigError(f"cannot read {self.result}: {error.strerror}; fix that, then try again") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{self.result} is altered or damaged: {error}; remove it, and resume the run to write it again"
            ) from error

    def _refusal(self, error: OSError) -> ConfigError:
        return ConfigError(f"cannot write to {self.path}: {error.strerror}; fix that, then try again")

    def _write(self, config_text: str, environment: Mapping[str, str | int]) -> bool:
        """Write the first files of a run, unless another process has just done that. Return whether they are ours."""
        try:
            file = self.environment.open("xb")
        except FileExistsError:
            return False
        try:
            with file:
                file.write(_format(environment))
            self.config.write_text(config_text, encoding="utf-8")
        except OSError:
            with contextlib.suppress(OSError):  # may fail for the same reason, and the first error is reported
                self.config.unlink(missing_ok=True)
                self.environment.unlink(missing_ok=True)
            raise
        return True


def read_config(path: Path, sets: Sequence[str] = ()) -> Config:
    """Return the config in a file, changed by settings."""
    try:
        text = read_plain(path, _MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"cannot read {path}: {words}; name a config in TOML") from error
    return parse_config(text, sets, source=str(path))


def _replace(path: Path, content: bytes) -> None:
    """Write a file under another name and rename it, so that it is there as a whole or not at all."""
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def _format(environment: Mapping[str, str | int]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(environment)) + b"\n"


def environment(*, version: str, threads: int, device: str) -> dict[str, str | int]:
    """Return what decides the bits of a run besides its config: versions, machine, threads of each worker, device.

    ``version`` is the version of Phalanx, which this layer cannot import.
    """
    return {
        "phalanx": version,
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "numpy": importlib.metadata.version("numpy"),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "threads": threads,
        "device": device,
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()

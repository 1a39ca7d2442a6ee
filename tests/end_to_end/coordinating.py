"""Real coordinators and workers, as ``phalanx`` commands and processes of their own.

Run as a program it is a worker: it takes steps until a line on its stdin says at which to leave.
"""

import contextlib
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

from launching import PHALANX, environ

# pytest makes only the folder of the file that it collects importable
sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("coordinator", "transport")]

from certificates import make_authority, make_certificate
from stepping import LIMIT_S, Stepper

from phalanx.transport import Credentials, parse_address, parse_token

TOKEN = "Zm9yIHRlc3RzIG9ubHksIGtlZXBzIG5vYm9keSBvdXQ"  # noqa: S105 - it keeps nobody out
WITH_TOKEN = Credentials(TOKEN.encode())
WORKER = [sys.executable, __file__]


class Command:
    """A command at work. What it writes is read as it comes, and must not hold the token."""

    def __init__(self, command, **extra):
        self.lines = []  # of both streams
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ(**extra),
        )
        self._written = {stream: [] for stream in (self.process.stdout, self.process.stderr)}
        self._readers = [threading.Thread(target=self._read, args=[stream]) for stream in self._written]
        self._open = len(self._readers)
        for reader in self._readers:
            reader.start()

    @property
    def pid(self):
        return self.process.pid

    def say(self, words):
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()

    def wait_for(self, words, count=1):
        """The first ``count`` lines with these words, when they have been written."""
        found, seen = [], 0

        def is_enough():
            nonlocal seen
            found.extend(line for line in self.lines[seen:] if words in line)
            seen = len(self.lines)
            return len(found) >= count or not self._open

        with self._changed:
            self._changed.wait_for(is_enough, LIMIT_S)
        assert len(found) >= count, f"{words!r} was written {len(found)} times: {''.join(self.lines[-20:])}"
        return found[:count]

    def finish(self):
        """The exit status, stdout and stderr, when it has ended."""
        status = self.process.wait(LIMIT_S)
        for reader in self._readers:
            reader.join()
        return status, *("".join(lines) for lines in self._written.values())

    def close(self):
        """End it at once, if it still runs."""
        self.process.kill()
        self.finish()
        for stream in (self.process.stdin, *self._written):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _read(self, stream):
        for line in stream:
            with self._changed:
                self._written[stream].append(line)
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._open -= 1
            self._changed.notify_all()


@contextlib.contextmanager
def running(command, **extra):
    """A command at work, until the block ends; then its words and its command line are looked at for the token."""
    started = Command(command, **extra)
    with contextlib.closing(started):
        command_line = Path(f"/proc/{started.pid}/cmdline").read_text(encoding="utf-8")
        yield started
    assert TOKEN not in command_line + "".join(started.lines)


def run(*arguments, **extra):
    """The exit status, stdout and stderr of a ``phalanx`` command that ends by itself."""
    with running([*PHALANX, *arguments], **extra) as command:
        return command.finish()


@contextlib.contextmanager
def serving(*options, bind="127.0.0.1:0", **extra):
    """A ``phalanx coordinator`` at work, and where."""
    with running([*PHALANX, "coordinator", "--bind", bind, *options], **extra) as command:
        line = command.wait_for("listening on ")[0]
        yield command, line.split()[3]


def write_token(folder):
    """A file with the token, and the option that names it."""
    file = folder / "token"
    file.write_text(f"{TOKEN}\n", encoding="utf-8")
    file.chmod(0o600)
    return ["--token-file", file]


def make_certificates(folder):
    """A certificate, its key, and the authority that signed it."""
    return make_certificate(folder, make_authority(folder))


def committed(journal):
    """The steps that a journal says count, in the order of its lines."""
    lines = journal.read_text(encoding="utf-8").splitlines()[1:]
    records = [json.loads(line[9:]) for line in lines]
    return [record["step"] for record in records if record["line"] == "Committed"]


class Leash:
    """How far a worker may go, and how far it has come: what it does after each step."""

    def __init__(self, limit):
        self._changed = threading.Condition()
        self._limit = limit
        self._step = 0

    def __call__(self, step):
        with self._changed:
            self._step = step
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: step < self._limit, LIMIT_S), "nobody let it go on"

    def wait_for(self, step):
        """Return when it has come so far."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._step >= step, LIMIT_S), f"it is still at step {self._step}"

    def let(self, limit):
        """Let it go on, as far as this."""
        with self._changed:
            self._limit = limit
            self._changed.notify_all()


def main():
    """Be a worker: write every step that counts and when, and at the end what became of it."""
    address, name, token = sys.argv[1:]
    credentials = Credentials(parse_token(Path(token).read_text(encoding="utf-8"), token)) if token else None

    def write(step):
        sys.stdout.write(f"step {step} at {time.monotonic()}\n")
        sys.stdout.flush()

    worker = Stepper(parse_address(address), name, None, credentials=credentials, on_step=write)
    threading.Thread(target=_read_end, args=[worker], daemon=True).start()
    worker.thread.join()
    became = {"applied": worker.applied, "epochs": [each.epoch for each in worker.welcomes], "error": str(worker.error)}
    sys.stdout.write(f"{json.dumps(became)}\n")


def _read_end(worker):
    for line in sys.stdin:
        worker._steps = int(line)


if __name__ == "__main__":
    main()

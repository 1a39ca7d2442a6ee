"""A coordinator in a process of its own, which is started again when it dies."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from phalanx.errors import ConfigError
from phalanx.launch import worker
from phalanx.launch.env import credentials_environ
from phalanx.transport import Credentials, format_address, parse_address
from phalanx.wire import Address

_ENDED = (0, 1)  # the run is over, or all workers have halted
_LISTENING = b"phalanx: listening on "
_START_S = 60.0
_SOON_S = 5.0  # a coordinator that dies sooner after its start may do so again
_MOST_SOON = 5
_END_S = 5.0


class RunningCoordinator:
    """Runs ``phalanx coordinator`` with ``options``. What it logs goes to the file ``log``.

    ``options`` must name a journal: a coordinator that was killed continues on it, at the same address.
    """

    def __init__(self, bind: Address, options: Sequence[str], credentials: Credentials, log: Path) -> None:
        self._options = list(options)
        self._credentials = credentials
        self._log = log
        self._is_closing = False
        self._is_ready = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.address = bind
        self._failure = ""
        self._thread = threading.Thread(target=self._keep_going, name="phalanx-coordinator-watch", daemon=True)
        self._thread.start()
        if not self._is_ready.wait(_START_S) or self._failure:
            self.close()
            raise ConfigError(f"cannot start the coordinator: {self._failure or 'it does not come up'}; see {log}")

    @property
    def pid(self) -> int:
        """The process that runs now, or ran last."""
        assert self._process, "it was started"
        return self._process.pid

    def close(self) -> None:
        """End the coordinator. Closing twice is harmless."""
        self._is_closing = True
        if self._process and self._process.poll() is None:
            self._process.terminate()
        self._thread.join(_END_S)
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._thread.join(_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep_going(self) -> None:
        """Start the coordinator, and again whenever it dies. It also dies with this thread, which has started it."""
        soon = 0
        while not self._is_closing:
            began = time.monotonic()
            code = self._run_once()
            if self._is_closing or code in _ENDED or not self._is_ready.is_set():
                break
            soon = soon + 1 if time.monotonic() - began < _SOON_S else 0
            if soon > _MOST_SOON:
                sys.stderr.write(f"phalanx: the coordinator keeps dying and is given up; see {self._log}\n")
                break
        self._is_ready.set()

    def _run_once(self) -> int:
        command = ["-m", "phalanx", "coordinator", "--bind", format_address(self.address), *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-I", "-S", worker.__file__, str(os.getpid()), *command],
                env=credentials_environ(self._credentials),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the workers, which then need the coordinator to stop together
            )
        with self._process as process:
            assert process.stdout
            for line in process.stdout:
                if line.startswith(_LISTENING):
                    self.address = parse_address(line.removeprefix(_LISTENING).split()[0].decode())
                    self._is_ready.set()
            code = process.wait()
        if not self._is_ready.is_set():
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            self._failure = lines[-1].removeprefix("phalanx: ") if lines else f"it ended with {code}"
        return code

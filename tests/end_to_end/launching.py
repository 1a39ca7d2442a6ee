"""Starting real launchers and seeing real processes end."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import time

PHALANX = [sys.executable, "-c", "from phalanx.cli import main; main()"]
SETTINGS = ("PHALANX_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")


def write_script(tmp_path, text):
    """A script that begins with the usual imports."""
    script = tmp_path / "script.py"
    imports = "import os, signal, subprocess, sys\nimport numpy as np\nimport phalanx\n"
    script.write_text(imports + textwrap.dedent(text), encoding="utf-8")
    return script


def environ(**extra):
    """This environment, without what another launcher may have said."""
    return {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)} | extra


def finish(command, **extra):
    """Run a command to its end."""
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, timeout=200, env=environ(**extra)
    )


@contextlib.contextmanager
def started(command, **extra):
    """A command at work, with pipes to it; it is killed if it is still there at the end."""
    with subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ(**extra),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class Watched:
    """Processes whose end can be waited for, even if they are nobody's children any longer."""

    def __init__(self, pids):
        self._descriptors = {pid: os.pidfd_open(pid) for pid in pids}

    def kill(self):
        for descriptor in self._descriptors.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    def left_after(self, seconds):
        """The processes that are still there when all have ended, or after some seconds."""
        end = time.monotonic() + seconds
        left = []
        for pid, descriptor in self._descriptors.items():
            if not select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
                left.append(pid)
            os.close(descriptor)
        return left

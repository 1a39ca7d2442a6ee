import signal
import subprocess
import sys

import pytest

START = "from phalanx_command import main; main()"
INTERRUPT_AT = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
"""


@pytest.mark.parametrize("module", ["phalanx", "numpy", "typer", "phalanx.cli.train"])
def test_ctrl_c_while_the_command_imports_ends_it_quietly(module):
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPT_AT.format(module=module) + START, "--version"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_while_a_command_works_ends_it_quietly_with_status_130():
    start = INTERRUPT_AT.format(module="torch") + START

    ended = subprocess.run(
        [sys.executable, "-c", start, "generate", "none"], capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_a_command_that_is_to_ignore_ctrl_c_does():
    start = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)" + INTERRUPT_AT.format(module="numpy") + START

    ended = subprocess.run([sys.executable, "-c", start, "--version"], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")

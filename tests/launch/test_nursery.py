"""Workers that are forked from a process that has imported their module."""

import os
import signal
import sys
import textwrap
from io import FileIO

import pytest

from phalanx.errors import ConfigError
from phalanx.launch.nursery import Nursery

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")

PROGRAM = """
import os, sys, signal
def prepare():
    sys.is_prepared = True
if __name__ == "__main__":
    has_session = os.getsid(0) == os.getpid()
    print(*sys.argv[1:], os.environ["WHO"], os.environ.get("HOME"), has_session, sys.is_prepared, flush=True)
    print("problems", file=sys.stderr)
    if "wait" in sys.argv:
        signal.pause()
    if "raise" in sys.argv:
        raise RuntimeError("out of luck")
    sys.exit(7)
"""


@pytest.fixture
def nursery(tmp_path):
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    with Nursery("program", {**os.environ, "PYTHONPATH": str(tmp_path)}) as nursery:
        yield nursery


class Started:
    """A worker, and what it writes."""

    def __init__(self, nursery, *arguments):
        (self.out, out), (self.err, err) = os.pipe(), os.pipe()
        self.process = nursery.start(arguments, {"WHO": "sprout"}, [out, err])
        os.close(out)
        os.close(err)

    def read(self, descriptor):
        with FileIO(descriptor) as file:
            return file.read().decode()


def test_a_worker_has_its_own_arguments_environment_output_and_session(nursery):
    first, second = Started(nursery, "one"), Started(nursery, "two", "more")

    said = [each.read(each.out) for each in (first, second)]
    problems = first.read(first.err)
    first.process.wait()
    second.process.wait()

    assert said == ["one sprout None True True\n", "two more sprout None True True\n"]
    assert problems == "problems\n"
    assert [first.process.poll(), second.process.poll()] == [7, 7]


def test_an_error_is_a_traceback_and_exit_code_1(nursery):
    worker = Started(nursery, "raise")

    words = worker.read(worker.err)
    worker.process.wait()

    assert words.endswith("RuntimeError: out of luck\n")
    assert worker.process.poll() == 1


def test_a_worker_that_is_killed_says_so(nursery):
    worker = Started(nursery, "wait")
    assert os.read(worker.out, 100)
    assert worker.process.poll() is None

    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.wait()

    assert worker.process.poll() == -signal.SIGKILL


def test_workers_die_with_the_nursery_and_are_known_to_have(nursery):
    worker = Started(nursery, "wait")
    assert os.read(worker.out, 100)

    os.kill(nursery.pid, signal.SIGKILL)
    worker.process.wait()

    assert worker.process.poll() == -signal.SIGKILL
    worker.read(worker.out)  # to its end: it has ended, and nobody else has its end of the pipe
    with pytest.raises(ConfigError, match="cannot start a worker: "):
        Started(nursery, "late")


def test_closing_ends_all(tmp_path):
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    with Nursery("program", {**os.environ, "PYTHONPATH": str(tmp_path)}) as nursery:
        worker = Started(nursery, "wait")
        assert os.read(worker.out, 100)

    worker.read(worker.out)  # to its end

"""Runs the tests of ``torch.testing._internal.distributed.distributed_test``, which PyTorch's wheel has, on a backend.

Every test forks its ranks from one process that has imported torch already, which takes seconds instead of hours.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

_RANKS = 3  # as many as PyTorch's own runs on CPUs have
_TEST_S = 60
_LINE = "torch-suite: "
BY_NAME = {
    "test_accumulate_gradients_no_sync": "it makes its model only if the backend is called gloo or nccl",
    "test_barrier_timeout": "it expects the words of Gloo's error",
    "test_monitored_barrier": "torch below 2.14 allows this only to a backend called gloo",
}
"""Tests that ask for Gloo by name, by the beginning of their own names, and how."""


def main() -> int:
    """Run the tests, print a table, and return 0 if every test that Gloo passes passes on ours."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only tests with one of these words in their names")
    parser.add_argument("--against", choices=["gloo"], help="run on this backend, too, and compare")
    parser.add_argument("--part", default="1/1", help="K/N: only every Nth test, beginning with the Kth")
    parser.add_argument("--backend", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.backend:
        run_tests(asked.words, asked.part)
        return 0
    ours = outcomes("phalanx", asked)
    theirs = outcomes(asked.against, asked) if asked.against else {}
    return report(ours, theirs)


def outcomes(backend: str, asked: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """Return how each test ended on a backend, and in which words."""
    command = [sys.executable, __file__, "--backend", backend, "--part", asked.part, *asked.words]
    environ = {**os.environ, "BACKEND": backend, "WORLD_SIZE": str(_RANKS), "OMP_NUM_THREADS": "1"}
    environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(_TEST_S)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        environ["TEMP_DIR"] = folder
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
            assert run.stdout
            for line in run.stdout:
                if line.startswith(_LINE):
                    name, outcome, words = json.loads(line.removeprefix(_LINE))
                    found[name] = outcome, words
                    sys.stderr.write(f"{backend:8} {outcome:8} {name}\n")
                    sys.stderr.flush()
    return found


def report(ours: dict[str, tuple[str, str]], theirs: dict[str, tuple[str, str]]) -> int:
    """Print how many tests ended how, and each test that ended differently, with the reason."""
    for name, found in {"phalanx": ours, "gloo": theirs}.items():
        if found:
            ends = [outcome for outcome, _ in found.values()]
            print(f"{name:8} " + ", ".join(f"{ends.count(each)} {each}" for each in ("passed", "failed", "skipped")))
    missed = 0
    for name, (outcome, words) in ours.items():
        other = theirs.get(name, ("", ""))[0]
        if outcome == "failed" or (theirs and outcome != other):
            reason = next((each for start, each in BY_NAME.items() if name.startswith(start)), None)
            missed += outcome != "passed" and other in ("passed", "") and reason is None
            print(f"{name}: {outcome}{f', {other} on gloo' if other else ''}: {reason or words}")
    return 1 if missed else 0


# In the process of one backend


def run_tests(words: list[str], part: str) -> None:
    """Run tests in this process, which forks their ranks, and print a line for each."""
    suite = load()
    number, parts = map(int, part.split("/"))
    names = [each for each in unittest.TestLoader().getTestCaseNames(suite) if _is_wanted(each, words)]
    for name in names[number - 1 :: parts]:
        result = Told()
        suite(name).run(result)
        print(_LINE + json.dumps([name, *result.ending]), flush=True)


def load() -> type[unittest.TestCase]:
    """Return PyTorch's test case, with ranks that are forked.

    Many tests are skipped unless the backend is called gloo. That is decided when the module is imported, so it is told
    that name first, and the true one afterwards.
    """
    backend, os.environ["BACKEND"] = os.environ["BACKEND"], "gloo"
    import torch.multiprocessing
    from torch.testing._internal.distributed import distributed_test

    import phalanx.torch  # noqa: F401 - registers the backend

    os.environ["BACKEND"] = distributed_test.BACKEND = backend

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # noqa: SLF001 - PyTorch's own tests use it so
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Suite


class Told(unittest.TestResult):
    """How one test ended, in a word and a line."""

    ending = "failed", "it did not end"

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        """Keep that it passed."""
        del test
        self.ending = "passed", ""

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        """Keep why it was skipped."""
        del test
        self.ending = "skipped", reason

    def addFailure(self, test: unittest.TestCase, error: object) -> None:  # noqa: N802
        """Keep why it failed."""
        text = self._exc_info_to_string(error, test)
        if folder := os.environ.get("TORCH_SUITE_LOG"):
            (Path(folder) / f"{os.environ['BACKEND']}-{test.id().split('.')[-1]}.txt").write_text(text)
        lines = [
            line.strip()
            for line in text.splitlines()
            if re.match(r"\s*[\w.]*(Error|Exception|Lost|Mismatch|Exceeded)\b", line)
        ]
        self.ending = "failed", (lines or text.strip().splitlines())[-1][:300]

    addError = addFailure  # noqa: N815


def _is_wanted(name: str, words: list[str]) -> bool:
    return not words or any(word in name for word in words)


if __name__ == "__main__":
    sys.exit(main())

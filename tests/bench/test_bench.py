import json
import os
import re
import signal

import numpy as np
import pytest
from typer.testing import CliRunner

from phalanx.bench.all_reduce.driver import start
from phalanx.bench.all_reduce.plan import AllReduceSystem, task
from phalanx.bench.all_reduce.systems import Connected, Subject
from phalanx.bench.all_reduce.worker import check
from phalanx.cli.bench import app
from phalanx.errors import DeadlineExceeded, PeerLost
from phalanx.transport import Deadline


def bench(*options):
    return CliRunner().invoke(app, ["all-reduce", "--rounds", "1", *options])


@pytest.mark.slow
def test_json_has_one_object_for_every_system_and_size():
    said = bench("--ranks", "2", "--sizes", "4KiB,1MiB", "--systems", "arena,copy,tcp", "--json")

    assert (said.exit_code, said.stderr) == (0, "")
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    assert [(row["bytes"], row["system"]) for row in rows] == [
        (size, system) for size in (4096, 1 << 20) for system in ("arena", "copy", "tcp")
    ]
    for row in rows:
        assert row["ranks"] == 2
        assert row["iterations"] == 200
        assert row["algbw_gbps"] == pytest.approx(row["bytes"] / row["median_s"] / 1e9)
        assert row["busbw_gbps"] == pytest.approx(row["algbw_gbps"])
        assert row["vs_gloo"] is None


@pytest.mark.slow
def test_the_table_has_a_line_for_every_figure_and_fits_a_page():
    said = bench("--ranks", "2,3", "--sizes", "4KiB", "--systems", "inplace,tcp")

    assert said.exit_code == 0
    lines = said.stdout.splitlines()
    assert [line.split()[2] for line in lines if line.startswith("  4 KiB")] == ["inplace", "tcp"] * 2
    assert "vs slowest" in said.stdout
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--sizes", "4XB"), "'4XB' is not a size"),
        (("--systems", "nccl"), "no system 'nccl'"),
        (("--ranks", "0"), "'0' is not a number of workers"),
        (("--rounds", "0"), "0 rounds"),
    ],
)
def test_a_bad_argument_is_an_error_of_one_line(options, words):
    said = bench(*options)

    assert (said.exit_code, said.stdout) == (2, "")
    assert words in said.stderr
    assert said.stderr.count("\n") == 1


def test_a_system_that_is_not_installed_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # no mpirun there

    said = bench("--systems", "tcp,openmpi", "--sizes", "4KiB", "--json")

    assert said.exit_code == 0
    assert [json.loads(line)["system"] for line in said.stdout.splitlines()] == ["tcp"]
    assert said.stderr.startswith("phalanx bench: openmpi is left out: ")


def test_it_is_an_error_if_nothing_that_was_asked_for_is_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    said = bench("--systems", "openmpi")

    assert (said.exit_code, said.stdout) == (2, "")
    assert "openmpi is left out: " in said.stderr


@pytest.mark.slow
def test_a_worker_that_cannot_start_is_named_with_its_last_words(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise RuntimeError('this torch is broken')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    said = bench("--systems", "tcp,gloo", "--sizes", "4KiB", "--json")

    assert (said.exit_code, said.stdout) == (1, "")
    assert re.search("gloo: rank [01] ended during starting", said.stderr)
    assert "this torch is broken" in said.stderr


def test_a_worker_that_is_killed_is_named():
    with start(AllReduceSystem.TCP, 2) as crew:
        crew.programs[1].process.kill()
        crew.programs[1].process.wait()

        with pytest.raises(PeerLost, match=r"tcp: rank 1 ended during .* 4 KiB") as caught:
            crew.measure(task(4096), Deadline.after(30))

        assert caught.value.peer == 1


@pytest.mark.slow
def test_a_worker_that_stalls_is_an_error_at_the_deadline():
    with start(AllReduceSystem.TCP, 2) as crew:
        crew.programs[1].process.send_signal(signal.SIGSTOP)

        with pytest.raises(DeadlineExceeded, match=r"tcp: .*rank 1 did not finish .* within 0\.2 s"):
            crew.measure(task(4096), Deadline.after(0.2))

        crew.programs[1].process.send_signal(signal.SIGCONT)


def test_no_process_outlives_an_interruption():
    def interrupted():
        with start(AllReduceSystem.COPY, 3) as crew:
            processes.extend(program.process for program in crew.programs)
            raise KeyboardInterrupt

    processes = []

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert [process.returncode for process in processes] == [0, 0, 0]


def test_a_wrong_sum_is_an_error():
    array = np.zeros(10, np.float32)
    idle = Subject(array, array, reduce=lambda: None)
    member = Connected(0, barrier=lambda: None, prepare=lambda _: idle)

    with pytest.raises(ArithmeticError, match="rank 0 got a wrong sum of 10 elements"):
        check(idle, member, ranks=2)

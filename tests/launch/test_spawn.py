"""A function of this program on several workers."""

import contextlib
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import phalanx
from phalanx.errors import ConfigError, DeadlineExceeded, RemoteError
from phalanx.launch.spawning import SpawnEnd, judge_spawned

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="spawn forks")


@dataclass
class Score:
    rank: int
    values: np.ndarray


def test_a_function_runs_on_every_worker_and_what_they_return_comes_back_by_rank():
    offset = 10  # which a function has, and a script would have to be told

    def work(group, factor):
        return factor * (offset + group.rank), group.all_reduce(1), os.environ["RANK"], group.local_rank

    assert phalanx.spawn(work, 3, workers=3) == [(30 + 3 * rank, 3, str(rank), rank) for rank in range(3)]


def test_arrays_and_dataclasses_of_this_program_come_back():
    def work(group):
        return [Score(group.rank, np.full(1_000_000, group.rank, np.float32))]

    for rank, (score,) in enumerate(phalanx.spawn(work)):
        assert isinstance(score, Score)
        assert score.rank == rank
        assert np.all(score.values == rank)


def test_what_workers_write_is_printed_with_their_ranks(capsys):
    def work(group):
        print("hello")  # noqa: T201 - that is the point
        os.write(2, b"no end \xff")

    phalanx.spawn(work)

    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == ["[rank 0] hello", "[rank 1] hello"]
    assert sorted(err.splitlines()) == [f"[rank {rank}] no end \N{REPLACEMENT CHARACTER}" for rank in range(2)]


def test_the_first_error_is_raised_with_the_traceback_of_its_worker():
    def work(group):
        if group.rank == 1:
            raise_it()
        group.barrier()

    def raise_it():
        raise KeyError("no such thing")

    with pytest.raises(RemoteError, match=r"(?s)^rank 1 failed: KeyError: 'no such thing'.*in raise_it"):
        phalanx.spawn(work, workers=3)


def test_a_worker_that_is_killed_is_named():
    def work(group):
        group.barrier()
        if group.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        group.barrier()

    with pytest.raises(RemoteError, match="rank 0 was killed by SIGKILL"):
        phalanx.spawn(work)


def test_a_worker_that_exits_is_named():
    with pytest.raises(RemoteError, match="rank 0 failed: SystemExit: 3"):
        phalanx.spawn(lambda _: sys.exit(3), workers=1)


def test_a_result_that_cannot_come_back_is_refused_with_its_type_and_place():
    with pytest.raises(RemoteError, match=r"what rank 0 returned\['a'\] is of type set"):
        phalanx.spawn(lambda _: {"a": {1}}, workers=1)


@pytest.mark.slow
def test_a_function_that_takes_too_long_is_ended():
    def work(group):
        threading.Event().wait()

    before = children_of_this_process()

    with pytest.raises(DeadlineExceeded, match="has not returned within 2 s on rank 0, rank 1"):
        phalanx.spawn(work, timeout_s=2)

    assert children_of_this_process() <= before  # none is left, not even as a zombie


def children_of_this_process():
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.add(process.name)
    return found


def test_a_process_that_has_used_cuda_is_not_forked(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True)))

    with pytest.raises(ConfigError, match=r"has used CUDA.*`phalanx run`"):
        phalanx.spawn(lambda _: None)


def test_no_worker_is_too_few():
    with pytest.raises(ConfigError, match="at least one worker, not 0"):
        phalanx.spawn(lambda _: None, workers=0)


def test_torch_works_in_workers_after_it_has_worked_here():
    torch = pytest.importorskip("torch")
    matrix = torch.randn(400, 400)
    (matrix @ matrix).sum()  # starts threads, which a fork does not copy

    def work(group):
        weights = torch.ones(400, requires_grad=True)
        (matrix @ weights).square().sum().backward()
        return group.all_reduce(weights.grad.detach()).sum().item()

    first, second = phalanx.spawn(work)

    assert first == second


def end(rank, at=0.0, *, is_consequence=False, was_stopped=False, **outcome):
    found = {"error": "E", "traceback": "", "is_consequence": is_consequence, "at": at, **outcome}
    return SpawnEnd(rank, found, 0, was_stopped)


def test_the_worker_to_blame_is_the_first_that_failed_by_itself():
    killed = SpawnEnd(3, {}, -9, was_stopped=True)

    assert judge_spawned([end(0, 1.0, is_consequence=True), end(1, 3.0), end(2, 2.0), killed]).rank == 2
    assert judge_spawned([end(0, 1.0, is_consequence=True), SpawnEnd(1, {}, -9, was_stopped=False)]).rank == 1
    assert judge_spawned([SpawnEnd(0, {"result": None}, 0, was_stopped=False)]) is None

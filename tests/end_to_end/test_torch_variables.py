"""The variables that torchrun sets, for workers that ``phalanx run`` and ``phalanx join`` start."""

import json
from contextlib import ExitStack

import pytest
from coordinating import running, serving
from launching import PHALANX, finish, write_script

pytestmark = pytest.mark.slow  # real processes, all of them

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TELL = f"""
    import json
    def tell():
        sys.stdout.write(json.dumps([os.environ.get(name) for name in {NAMES}]) + "\\n")
    tell()
    with phalanx.connect(timeout_s=60) as group:
        tell()
"""


def told(text):
    """What each worker told, in the order of its lines, by the worker's mark."""
    found = {}
    for line in text.splitlines():
        mark, _, words = line.partition("] ")
        found.setdefault(mark, []).append(json.loads(words))
    return found


def test_phalanx_run_tells_every_worker_its_rank_before_it_starts(tmp_path):
    ended = finish([*PHALANX, "run", "-n", 3, "--hosts", 2, write_script(tmp_path, TELL)], RANK="9", MASTER_PORT="1")

    assert (ended.returncode, ended.stderr) == (0, "")
    before = {mark: lines[0] for mark, lines in told(ended.stdout).items()}
    ports = {values[5] for values in before.values()}
    assert {mark: values[:5] for mark, values in before.items()} == {
        "[rank 0": ["0", "3", "0", "2", "127.0.0.1"],
        "[rank 1": ["1", "3", "1", "2", "127.0.0.1"],
        "[rank 2": ["2", "3", "0", "1", "127.0.0.1"],
    }
    assert len(ports) == 1
    assert ports != {"1"}


def test_a_worker_of_phalanx_join_knows_its_rank_once_it_has_connected(tmp_path):
    script = write_script(tmp_path, TELL)
    with ExitStack() as stack:
        _, address = stack.enter_context(serving("--workers", "3"))
        commands = [
            stack.enter_context(running([*PHALANX, "join", address, "-n", count, "--", script])) for count in (2, 1)
        ]
        ends = [command.finish() for command in commands]

    assert [(status, err) for status, _, err in ends] == [(0, "")] * 2
    lines = [json.loads(line.partition("] ")[2]) for _, out, _ in ends for line in out.splitlines()]
    before, after = [each for each in lines if each[0] is None], [each for each in lines if each[0] is not None]
    assert sorted(before) == [
        [None, None, "0", "1", None, None],
        [None, None, "0", "2", None, None],
        [None, None, "1", "2", None, None],
    ]
    assert sorted(each[:5] for each in after) == [[str(rank), "3", str(rank), "3", "127.0.0.1"] for rank in range(3)]
    assert len({each[5] for each in after}) == 1


def test_a_script_that_only_knows_torch_runs_under_phalanx_run(tmp_path):
    pytest.importorskip("torch")
    script = write_script(
        tmp_path,
        """
        import torch
        torch.distributed.init_process_group("gloo")
        total = torch.tensor([torch.distributed.get_rank() + 1])
        torch.distributed.all_reduce(total)
        torch.distributed.destroy_process_group()
        sys.stdout.write(f"{total.item()}\\n")
        """,
    )

    ended = finish([*PHALANX, "run", "-n", 3, script])

    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [f"[rank {rank}] 6" for rank in range(3)]

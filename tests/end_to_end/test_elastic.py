"""The commands of docs/elastic.md: workers of an own loop that are killed, and others that take their places."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from coordinating import running, serving
from launching import PHALANX, write_script

pytestmark = pytest.mark.slow  # every worker imports torch

TRAIN = """
    import torch
    from phalanx.parallel import Engine, digest_weights

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(12, 1)

    def batches(step, lane):
        x = torch.randn(4, 12, generator=torch.Generator().manual_seed(1000 * step + lane))
        return [(x, x.sum(1, keepdim=True))]

    def loss(model, batch):
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    with phalanx.join_run(lanes=8, timeout_s=60) as run:
        engine = Engine(model, loss, lambda leaves: torch.optim.AdamW([leaf.block for leaf in leaves]), run)
        for report in engine.train(batches, int(sys.argv[1]), wants_stop=lambda: os.path.exists("stop")):
            if report.step % 20 == 0:
                print(f"process {os.getpid()} is at step {report.step} with {run.group.size} workers", flush=True)
    print("digest", digest_weights(list(model.named_parameters())), engine.step_number)
"""


def ends_of(commands):
    """The digest and the number of steps with which all workers ended well."""
    ends = [command.finish() for command in commands]
    assert [status for status, _, _ in ends] == [0] * len(ends), ends
    (found,) = {tuple(out.splitlines()[-1].split()[-2:]) for _, out, _ in ends}
    return found


def test_a_worker_that_is_killed_is_replaced_and_the_weights_are_those_of_one_worker(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = write_script(tmp_path, TRAIN)
    with ExitStack() as stack:
        _, address = stack.enter_context(serving("--workers", "2:3"))

        def join():
            return stack.enter_context(running([*PHALANX, "join", address, "-n", 1, "--", script, 1_000_000]))

        first, second, victim = [join() for _ in range(3)]
        words = victim.wait_for("with 3 workers")[0].split()
        os.kill(int(words[words.index("process") + 1]), signal.SIGKILL)
        newcomer = join()
        newcomer.wait_for("with 3 workers")
        (tmp_path / "stop").touch()
        digest, steps = ends_of([first, second, newcomer])

    (tmp_path / "stop").unlink()
    with running([*PHALANX, "run", "-n", 1, script, steps]) as alone:
        assert ends_of([alone]) == (digest, steps)


def test_the_example_continues_from_its_checkpoint_with_other_workers_and_has_the_same_weights(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "elastic_gpt.py"

    def train(workers, folder, steps):
        with running([*PHALANX, "run", "-n", workers, example, tmp_path / folder, steps]) as command:
            return ends_of([command])

    train(2, "interrupted", 13)
    continued = train(1, "interrupted", 20)

    assert continued == train(3, "calm", 20)
    assert sorted(path.name for path in (tmp_path / "interrupted").iterdir()) == ["step-00000010", "step-00000020"]

"""The worker that writes a run is killed while it does: another one writes the rest, and no bit changes."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from tiny import CPU, make_config, training

from forking import fork, wait
from phalanx.checkpoint.draft import Draft
from phalanx.coordinator import Coordinator, Terms
from phalanx.group import ElasticRun, Join
from phalanx.train import keeper
from phalanx.train.checkpoint import list_checkpoints, load
from phalanx.train.data import open_corpus
from phalanx.train.keeper import Keeper
from phalanx.train.log import StepLog, read_steps
from phalanx.train.loop import Trainer
from phalanx.train.rundir import RunDir
from phalanx.transport import format_address, parse_address

POINTS = {
    "before-log": (StepLog, "append"),
    "begin": (Draft, "begin"),
    "write": (Draft, "write"),
    "before-rename": (Path, "rename"),
    "after-rename": (keeper, "prune"),
}
STEP = 4  # of the checkpoint that is written when a worker dies
SIZE = 3
TIMEOUT_S = 120.0


def die_once(owner, name, engine, mark):
    """Replace a function: it kills the first worker that calls it behind the step."""
    act = getattr(owner, name)

    def die_or_act(*arguments, **options):
        if engine.step_number == STEP:
            with suppress(FileExistsError):
                mark.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return act(*arguments, **options)

    setattr(owner, name, die_or_act)


def work(config, run, address, point):
    """What a worker of an elastic run does. One of them dies at the point."""
    corpus = open_corpus(config.data)
    join = Join(coordinator=(address,), lanes=config.train.lanes, timeout_s=TIMEOUT_S, can_keep=True)
    with ElasticRun(join) as elastic, Keeper(run, config, corpus, elastic) as keeper:
        trainer = Trainer(config, corpus, elastic, CPU)
        die_once(*POINTS[point], trainer.engine, run.path / "died")
        assert trainer.run(keeper)


def train(config, run, point):
    """Train a run, and return how its workers have ended."""
    pipes = [os.pipe() for _ in range(SIZE)]
    workers = [  # forked before this process has a thread
        fork(lambda reader=reader: work(config, run, parse_address(os.read(reader, 1024).decode()), point))
        for reader, _ in pipes
    ]
    with Coordinator(terms=Terms(minimum=1, maximum=SIZE, first=SIZE)) as coordinator:
        for reader, writer in pipes:
            os.write(writer, format_address(coordinator.address).encode())
            os.close(writer)
            os.close(reader)
        return sorted(wait(worker) for worker in workers)


def story_of(run):
    """Every step, in the order of the log, with the digests of weights and optimizer state, and the last weights."""
    steps = [(each.step, each.loss_bits, each.norm, each.digest, each.eval_loss) for each in read_steps(run.steps)]
    return steps, read_steps(run.steps)[-1].state_digest, run.read_result().digest


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The story of a run with one worker. It also imports what the workers would else import one by one."""
    folder = tmp_path_factory.mktemp("calm")
    config, run = make_config(folder), RunDir.create(folder / "run", "", {})
    with training(config) as trainer, Keeper(run, config, open_corpus(config.data), trainer.exchange) as keeper:
        assert trainer.run(keeper)
    return story_of(run)


@pytest.mark.slow
@pytest.mark.parametrize("zero", ["false", "true"])
@pytest.mark.parametrize("point", POINTS)
def test_if_a_worker_dies_while_it_writes_the_others_write_the_rest(point, zero, undisturbed, tmp_path):
    config = make_config(tmp_path, "run.keep=9", f"run.zero={zero}")

    run = RunDir.create(tmp_path / "run", "", {})

    ended = train(config, run, point)

    assert ended == [-signal.SIGKILL, 0, 0]
    assert story_of(run) == undisturbed
    steps = [load(path).step for path in list_checkpoints(run.path)]
    assert {6} <= set(steps) <= {2, STEP, 6}  # the others may have gone on before the rest was written
    assert [path for path in run.checkpoints.iterdir() if path.name.startswith(".")] == []

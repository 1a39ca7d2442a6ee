"""A recorded run of any size, made by the writers of real runs: what the page is tested and measured with.

``python tests/dashboard/recorded_run.py FOLDER WORKERS STEPS`` makes one.
"""

import math
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np

from phalanx.coordinator import EventLog
from phalanx.coordinator.events import CoordinatorStarted, EpochBegan, Recovered, Seat, WorkerLost
from phalanx.telemetry import NOTHING, RECORD, Activity, BatchFile, RecordBatch, encode_batch
from phalanx.train.config_text import format_config, parse_config
from phalanx.train.log import StepLog
from phalanx.train.record import StepRecord, float_bits
from phalanx.train.rundir import RunDir

BEGAN_S = 1_794_000_000.0
STEP_NS = 100_000_000
_PER_BATCH = 10
_SLOW = 1
_PARTS = (  # activity, begin and end in a step, thread
    (Activity.DATA, 0, 5, 0),
    (Activity.FORWARD, 5, 25, 0),
    (Activity.BACKWARD, 25, 70, 0),
    (Activity.EXCHANGE, 60, 85, 1),
    (Activity.WAIT, 75, 80, 1),
    (Activity.EXPOSED, 70, 85, 0),
    (Activity.OPTIMIZER, 85, 95, 0),
    (Activity.STEP, 0, 100, 0),
)


def write_run(folder: Path, workers: int, steps: int) -> RunDir:
    """Make a run in which rank 1 is waited for, and the last rank was lost once in the middle."""
    sizes = {"train.steps": steps, "run.workers": workers, "train.lanes": workers, "train.batch": workers}
    config = parse_config("", [f"{key}={value}" for key, value in sizes.items()])
    run = RunDir.create(folder, format_config(config), {})
    with closing(StepLog(run.steps)) as log:
        for step in range(steps):
            log.append(make_step(step, workers))
    write_events(run, workers, steps // 2)
    for rank in range(workers):
        with closing(BatchFile(run.telemetry, f"node:{4000 + rank}")) as file:
            for first in range(0, steps, _PER_BATCH):
                file.append(encode_batch(make_batch(rank, range(first, min(steps, first + _PER_BATCH)))))
    return run


def make_step(step: int, workers: int, loss: float | None = None) -> StepRecord:
    loss = 2.0 + 3.0 * math.exp(-step / 1000) + 0.1 * math.sin(step) if loss is None else loss
    return StepRecord(
        step=step,
        loss=loss,
        loss_bits=float_bits(loss),
        norm=1.0 + 0.2 * math.cos(step),
        lr=1e-3,
        digest=f"{step:032x}",
        tokens=4096,
        workers=workers,
        compute_s=0.07,
        exchange_s=0.02,
        wait_s=0.01,
        seconds=0.1,
        eval_loss=loss + 0.1 if step % 50 == 49 else None,
        state_digest=f"{step:032x}" if step % 100 == 99 else None,
    )


def write_events(run: RunDir, workers: int, step: int) -> None:
    seats = tuple(Seat(rank, 4000 + rank, "node", 1, False) for rank in range(workers))
    with EventLog(run.events) as log:
        log.write([CoordinatorStarted(is_restart=False, step=0), EpochBegan(epoch=1, step=0, members=seats)])
        log.write([WorkerLost(rank=workers - 1, pid=4000 + workers - 1, host="node", words="its connection closed")])
        back = (*seats[:-1], Seat(workers - 1, 5000, "node", 1, True))
        log.write([EpochBegan(epoch=2, step=step, members=back)])
        log.write([Recovered(epoch=2, step=step, lost=1, members=workers, epoch_s=0.1, commit_s=0.4)])


def make_batch(rank: int, steps: range) -> RecordBatch:
    table = np.zeros((len(steps), len(_PARTS)), RECORD)
    starts = np.array(steps, np.int64)[:, None] * STEP_NS
    for name, values in (("start", [part[1] for part in _PARTS]), ("end", [part[2] for part in _PARTS])):
        table[name] = starts + np.array(values) * (STEP_NS // 100)
    table["step"] = np.array(steps)[:, None]
    table["epoch"], table["rank"], table["number"], table["peer"] = 1, rank, NOTHING, NOTHING
    table["activity"] = [part[0] for part in _PARTS]
    table["track"] = [part[3] for part in _PARTS]
    table["peer"][:, 4] = 0 if rank == _SLOW else _SLOW
    return RecordBatch(
        f"node:{4000 + rank}", ("training", "exchange"), 0, 1000, int(BEGAN_S * 1e9), 0, table.ravel().tobytes()
    )


if __name__ == "__main__":
    made = write_run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    print(msgspec.json.encode({"run": str(made.path)}).decode())  # noqa: T201 - a command

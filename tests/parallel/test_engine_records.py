"""What an engine records of its steps, and that recording changes no bit."""

import numpy as np
import pytest
from engine_play import LANES, make_engine, run, train
from spread import spread

from phalanx.telemetry import NOTHING, RECORD, Activity, Recorder

STEPS = 3
BUCKETS = [
    ["first.weight", "first.bias"],
    ["last.weight", "last.bias", "sometimes", "never", "norm.weight", "norm.bias"],
]


def record(group):
    """The records of some steps as bytes, the names of the threads, and the last loss."""
    recorder = Recorder()
    reports = train(make_engine(group, buckets=BUCKETS, recorder=recorder), STEPS)
    batch = recorder.take()
    recorder.close()
    return batch.records.hex(), batch.tracks, reports[-1].loss.hex()


@pytest.mark.parametrize("over", ["arena", "tcp"])
def test_every_lane_bucket_and_phase_of_every_step_is_recorded_with_its_rank(over):
    for rank, (content, tracks, _) in enumerate(spread(2, record, over)):
        table = np.frombuffer(bytes.fromhex(content), RECORD)
        steps = np.arange(STEPS)

        assert set(table["rank"][table["activity"] != Activity.CALL]) <= {rank, NOTHING}
        for activity in (Activity.STEP, Activity.EXPOSED, Activity.COMMIT, Activity.OPTIMIZER):
            assert _of(table, activity)["step"].tolist() == steps.tolist()
        for activity in (Activity.DATA, Activity.FORWARD, Activity.BACKWARD):
            lanes = [(step, lane) for step in steps for lane in range(rank * LANES // 2, (rank + 1) * LANES // 2)]
            assert _of(table, activity)[["step", "number"]].tolist() == lanes
        ready, exchanged = _of(table, Activity.READY), _of(table, Activity.EXCHANGE)
        assert exchanged[["step", "number"]].tolist() == ready[["step", "number"]].tolist()
        assert len(exchanged) == STEPS * (len(BUCKETS) + 1), "those of parameters, and one of buffers"
        assert (exchanged["end"] >= ready["start"]).all()
        assert {tracks[track] for track in exchanged["track"]} == {"exchange"}
        assert set(_of(table, Activity.WAIT)["peer"]) <= {1 - rank}


def test_recording_changes_no_bit():
    assert {loss for _, _, loss in spread(2, record)} == {_last_loss()}


def _last_loss():
    return run(2, steps=STEPS, buckets=BUCKETS).split("), (")[-1].split("'")[1]


def _of(table, activity):
    return table[table["activity"] == activity]

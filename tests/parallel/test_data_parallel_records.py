"""What a DataParallel records of a loop, and that blame can be found in it."""

import numpy as np
import pytest
from data_parallel_play import loss_of, make_net
from spread import spread

from phalanx.parallel import DataParallel
from phalanx.telemetry import OFF, RECORD, Activity, Recorder

STEPS = 3


def record(group):
    """The records of some steps as bytes, the names of the threads, and the last loss."""
    recorder = Recorder()
    loss = train(group, recorder)
    batch = recorder.take()
    recorder.close()
    return batch.records.hex(), batch.tracks, loss


def train(group, recorder=OFF):
    model = DataParallel(make_net(), group, bucket_bytes=256, recorder=recorder)
    for step in range(STEPS):
        loss = loss_of(model, [2 * step + group.rank])
        loss.backward()
        model.zero_grad()
    return loss.item().hex()


@pytest.mark.parametrize("over", ["arena", "tcp"])
def test_every_pass_bucket_and_step_is_recorded_with_its_rank(over):
    for rank, (content, tracks, _) in enumerate(spread(2, record, over)):
        table = np.frombuffer(bytes.fromhex(content), RECORD)

        for activity in (Activity.STEP, Activity.EXPOSED):
            assert _of(table, activity)["step"].tolist() == list(range(STEPS))
        for activity in (Activity.DATA, Activity.FORWARD, Activity.BACKWARD):
            assert _of(table, activity)[["step", "number"]].tolist() == [(step, rank) for step in range(STEPS)]
        ready, exchanged = _of(table, Activity.READY), _of(table, Activity.EXCHANGE)
        assert exchanged[["step", "number"]].tolist() == ready[["step", "number"]].tolist()
        assert len(set(exchanged["number"])) > 1, "several buckets"
        assert set(exchanged["rank"]) == {rank}
        assert {tracks[track] for track in exchanged["track"]} == {"exchange"}


def test_recording_changes_no_bit():
    assert [loss for _, _, loss in spread(2, record)] == spread(2, train)


def _of(table, activity):
    return table[table["activity"] == activity]

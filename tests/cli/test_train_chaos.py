"""What the events of a run say of its workers: for a storm that looks for victims, and of how it got over it."""

from phalanx.cli.train_chaos import describe_chaos, list_members, summarize
from phalanx.coordinator.events import Admitted, EpochBegan, Recovered, Seat, WorkerEvicted, WorkerLeft, WorkerLost
from phalanx.launch.chaos import Mishap
from phalanx.launch.storm import Struck, Weather
from phalanx.train.record import StepRecord, float_bits


def epoch(number, *pids):
    members = tuple(Seat(rank, pid, "anvil", 2, is_new=False) for rank, pid in enumerate(pids))
    return EpochBegan(epoch=number, step=number, members=members)


def test_before_the_first_epoch_there_are_no_members():
    assert list_members([]) == []


def test_the_members_are_those_of_the_last_epoch_without_those_that_went_since():
    events = [
        epoch(1, 10, 11),
        WorkerLost(rank=0, pid=10, host="anvil", words="it hung up"),
        epoch(2, 11, 12, 13, 14),
        WorkerLost(rank=0, pid=11, host="anvil", words="it hung up"),
        WorkerEvicted(rank=1, pid=12, host="anvil", words="it does nothing"),
        WorkerLeft(rank=2, pid=13, host="anvil"),
    ]

    assert list_members(events) == [14]
    assert list_members(events[:3]) == [11, 12, 13, 14]


def make_record(step, lanes_s):
    times = dict.fromkeys(("compute_s", "exchange_s", "wait_s", "seconds"), 0.1)
    figures = {"loss": 2.5, "loss_bits": float_bits(2.5), "norm": 1.0, "lr": 0.1, "digest": "d", "tokens": 64}
    return StepRecord(step=step, workers=4, lanes_s=lanes_s, **figures, **times)


def kill_one(*between):
    """A run in which process 10 is killed at 100 s, in step 7, and 2 lanes are then computed for 0.25 s."""
    seats = tuple(Seat(rank, 10 + rank, "anvil", 2, is_new=False) for rank in range(4))
    events = [
        EpochBegan(90.0, epoch=1, step=0, members=seats),
        WorkerLost(100.01, rank=0, pid=10, host="anvil", words="it died"),
        EpochBegan(100.02, epoch=2, step=7, members=seats[1:]),
        Recovered(100.45, epoch=2, step=7, lost=1, members=3, epoch_s=0.01, commit_s=0.44),
        *between,
        EpochBegan(101.0, epoch=3, step=8, members=seats),
    ]
    weather = Weather([], [Struck(100.0, Mishap.KILL, 7, (10,))])
    return summarize(weather, events, [make_record(6, 0.5), make_record(7, 0.25), make_record(8, 0.6)])


def test_a_recovery_says_how_long_the_missing_lanes_took():
    report = kill_one()

    (recovery,) = report.recoveries
    times = [recovery.noticed_s, recovery.formed_s, recovery.committed_s, recovery.lanes_s, recovery.rest_s]
    assert [round(each, 3) for each in times] == [0.01, 0.02, 0.45, 0.25, 0.2]
    assert (recovery.lanes, recovery.newcomers) == (2, 0)
    assert "  without computing lanes                 200       200" in describe_chaos(report)


def test_a_recovery_says_who_got_the_state_in_the_same_step():
    newcomer = Seat(3, 14, "anvil", 2, is_new=True)

    report = kill_one(Admitted(100.45, epoch=2, step=7, newcomers=(newcomer,), members=4, stood_still_s=0.4))

    assert [each.newcomers for each in report.recoveries] == [1]

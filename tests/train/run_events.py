"""Events as coordinators write them down."""

from phalanx.coordinator.events import (
    Admitted,
    CoordinatorStarted,
    EpochBegan,
    EpochEnded,
    Recovered,
    RunEnded,
    Seat,
    WorkerCame,
    WorkerLeft,
    WorkerLost,
)

HUNG_UP = "its connection closed (it hung up)"


def seats(count, host="anvil"):
    return tuple(Seat(rank, 100 + rank, host, 8 // count, is_new=False) for rank in range(count))


def beginning(time=1000.0, count=4, *, step=0):
    """The coordinator and the workers start."""
    return [
        CoordinatorStarted(time, is_restart=False, step=0),
        *(WorkerCame(time + 1, rank=None, pid=seat.pid, host=seat.host) for seat in seats(count)),
        EpochBegan(time + 2, epoch=1, step=step, members=seats(count)),
    ]


def loss(time, step, epoch=2, *, rank=2, pid=102, commit_s=0.3):
    """One of four is killed, and the other three continue."""
    return [
        WorkerLost(time, rank=rank, pid=pid, host="anvil", words=HUNG_UP),
        EpochEnded(time, epoch=epoch - 1, cause="lost", rank=rank, words="it went away"),
        EpochBegan(time, epoch=epoch, step=step, members=seats(3)),
        Recovered(time + commit_s, epoch=epoch, step=step, lost=1, members=3, epoch_s=0.01, commit_s=commit_s),
    ]


def newcomer(time, step, epoch=3, *, pid=200, stood_still_s=0.2):
    """One more is admitted to three."""
    seat = Seat(3, pid, "forge", 2, is_new=True)
    return [
        WorkerCame(time, rank=None, pid=pid, host="forge"),
        EpochBegan(time + 1, epoch=epoch, step=step, members=(*seats(3), seat)),
        Admitted(
            time + 1 + stood_still_s,
            epoch=epoch,
            step=step,
            newcomers=(seat,),
            members=4,
            stood_still_s=stood_still_s,
        ),
    ]


def ending(time, step, count=4):
    """All leave."""
    lefts = [WorkerLeft(time, rank=seat.rank, pid=seat.pid, host=seat.host) for seat in seats(count)]
    return [*lefts, RunEnded(time, step=step, words=f"all workers left it at step {step}", has_halted=False)]


def storm(kills):
    """Kills and newcomers in turn, one every ten seconds and ten steps."""
    events = beginning()
    for number in range(kills):
        events += loss(1010.0 + 10 * number, 10 * number, 2 + 2 * number, commit_s=0.3 + number / 1000)
        events += newcomer(1012.0 + 10 * number, 10 * number + 5, 3 + 2 * number)
    return events + ending(1020.0 + 10 * kills, 10 * kills)

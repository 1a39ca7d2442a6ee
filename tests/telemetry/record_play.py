"""Records of runs that never happened, for tests of what is made of records."""

import numpy as np

from phalanx.telemetry import NOTHING, RECORD, Activity, WorkerRecords

MS = 1_000_000
TRACKS = ("garbage collection", "training", "exchange", "checkpoint")
TRAINING, EXCHANGE = 1, 2


class Rank:
    """One rank that writes its records by hand; times are in milliseconds from the start of the run."""

    def __init__(self, rank):
        self.rank = rank
        self.rows = []

    def add(self, activity, step, start, end, *, number=NOTHING, peer=NOTHING, track=TRAINING, epoch=1):
        self.rows.append((int(start * MS), int(end * MS), step, epoch, number, self.rank, peer, activity, track))

    def records(self):
        table = np.array(self.rows, RECORD)
        table = table[np.argsort(table["start"], kind="stable")]
        return WorkerRecords(f"node{self.rank}:{100 + self.rank}", TRACKS, table, 1000, 0, 0)


def run(size, steps=10, *, forward=20, backward=40, data=1, lanes=1, transfer=1, slow=None):
    """Return the records of a run. ``slow`` has by rank what differs there: more seconds of an activity, or a link.

    A bucket takes ``transfer`` ms to exchange after all ranks are ready; ``link`` of a slow rank is added to that.
    """
    slow = slow or {}
    ranks = [Rank(rank) for rank in range(size)]
    now = 0.0
    for step in range(steps):
        now = _step(ranks, step, now, forward, backward, data, lanes, transfer, slow)
    return [each.records() for each in ranks]


def _step(ranks, step, began, forward, backward, data, lanes, transfer, slow):
    ready = []
    for each in ranks:
        differs = slow.get(each.rank, {})
        clock = began
        for lane in range(differs.get("lanes", lanes)):
            for activity, usual in (
                (Activity.DATA, data),
                (Activity.FORWARD, forward),
                (Activity.BACKWARD, backward),
            ):
                longer = usual + differs.get(activity, 0)
                each.add(activity, step, clock, clock + longer, number=lane)
                if activity is Activity.BACKWARD and (pause := differs.get(Activity.COLLECT)):
                    each.add(Activity.COLLECT, step, clock + 1, clock + 1 + pause, number=2, track=0)
                clock += longer
        each.add(Activity.READY, step, clock, clock, number=0)
        ready.append(clock)
    late = max(ready)
    done = late + transfer + max((each.get("link", 0) for each in slow.values()), default=0)
    for each, own in zip(ranks, ready, strict=True):
        each.add(Activity.EXCHANGE, step, own, done, number=0, track=EXCHANGE)
        for peer, theirs in enumerate(ready):
            link = max(slow.get(rank, {}).get("link", 0) for rank in (each.rank, peer))
            if peer != each.rank and (end := max(own, theirs) + link) > own:
                each.add(Activity.WAIT, step, own, end, number=0, peer=peer, track=EXCHANGE)
        each.add(Activity.EXPOSED, step, own, done)
        each.add(Activity.STEP, step, began, done + 5)
    saved = [each.get(Activity.CHECKPOINT, 0) for each in slow.values()]
    for each in ranks:
        if saving := slow.get(each.rank, {}).get(Activity.CHECKPOINT, 0):
            each.add(Activity.CHECKPOINT, step, done + 5, done + 5 + saving)
    return done + 5 + max(saved, default=0)

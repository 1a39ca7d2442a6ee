"""The whole protocol under thousands of schedules of faults; and the proof that a broken one would be found."""

import pytest
from msgspec.structs import replace

from phalanx.coordinator.decision import Record, Say
from phalanx.coordinator.membership import Membership
from phalanx.coordinator.participant import Apply, Participant, Tell
from phalanx.coordinator.record import Past
from phalanx.coordinator.steps import Steps
from phalanx.testing.cluster import coordinator as cluster_coordinator
from phalanx.testing.cluster import simulate_cluster
from phalanx.testing.cluster.laws import Violation
from phalanx.testing.cluster.walk import walk_all
from phalanx.wire import Commit, Done

EVERYTHING = {
    "accusations: lost",
    "accusations: stalled",
    "commits",
    "connections lost",
    "coordinator crashes",
    "coordinator restarts",
    "coordinator stops",
    "epochs",
    "evictions",
    "halts",
    "joins",
    "leaves",
    "messages lost",
    "partitions",
    "revocations",
    "stalls",
    "states fetched",
    "stops",
    "worker crashes",
}


def commit_early(monkeypatch):
    hear = Steps.hear

    def hear_some(self, rank, done, size, now):
        return hear(self, rank, done, max(1, size - 1), now)

    monkeypatch.setattr(Steps, "hear", hear_some)


def count_what_was_done_in_an_older_epoch(monkeypatch):
    hear = Membership._hear_member

    def hear_any(self, rank, message, now):
        if isinstance(message, Done):
            message = replace(message, epoch=self.epoch)
        return hear(self, rank, message, now)

    monkeypatch.setattr(Membership, "_hear_member", hear_any)


def commit_in_a_revoked_epoch(monkeypatch):
    hear = Membership._hear_member

    def hear_always(self, rank, message, now):
        is_done = isinstance(message, Done) and message.epoch == self.epoch
        return self._hear_done(rank, message, now) if is_done else hear(self, rank, message, now)

    monkeypatch.setattr(Membership, "_hear_member", hear_always)


def say_before_recording(monkeypatch):
    hear = Membership._hear_done

    def hear_hastily(self, rank, done, now):
        match hear(self, rank, done, now):
            case [Record() as record, Say() as say, *rest]:
                return [say, record, *rest]
            case decisions:
                return decisions

    monkeypatch.setattr(Membership, "_hear_done", hear_hastily)


def forget_the_journal(monkeypatch):
    monkeypatch.setattr(cluster_coordinator, "recall", lambda _: Past())


def apply_without_a_commit(monkeypatch):
    done = Participant.done

    def done_and_applied(self, epoch, loss, digest):
        moves = done(self, epoch, loss, digest)
        return [*moves, Apply(Commit(self.step, digest))] if moves else []

    monkeypatch.setattr(Participant, "done", done_and_applied)


def go_on_in_an_old_epoch(monkeypatch):
    def done_in_any(self, epoch, loss, digest):
        self._pending = digest
        return [Tell(Done(self.epoch, self.step, loss, digest))]

    monkeypatch.setattr(Participant, "done", done_in_any)


def overlook_closed_connections(monkeypatch):
    monkeypatch.setattr(Membership, "hang_up", lambda *_: [])


BUGS = [
    (commit_early, "was committed, but w"),
    (count_what_was_done_in_an_older_epoch, "was committed, but w"),
    (commit_in_a_revoked_epoch, "which is over"),
    (say_before_recording, "steps were committed"),
    (forget_the_journal, "began after epoch"),
    (apply_without_a_commit, "steps were committed"),
    (go_on_in_an_old_epoch, "of what it did in epoch"),
    (overlook_closed_connections, "waits for ever"),
]


def violations(seeds):
    for seed in seeds:
        try:
            simulate_cluster(seed)
        except Violation as violation:
            yield str(violation)


def test_every_promise_holds_whatever_fails_and_everything_does():
    reports = [simulate_cluster(seed) for seed in range(150)]

    happened = {what for report in reports for what in report.counts}
    assert happened >= EVERYTHING
    assert any(report.steps == 20 for report in reports)
    assert any(report.steps < 20 for report in reports)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1750, 250))
def test_every_promise_holds_in_many_more_schedules(first):
    reports = [simulate_cluster(seed) for seed in range(first, first + 250)]

    assert len({report.digest for report in reports}) == 250


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "steps"), [(1, 5), (2, 8), (8, 8)])
def test_every_promise_holds_for_any_number_of_workers(workers, steps):
    reports = [simulate_cluster(seed, workers=workers, steps=steps) for seed in range(20)]

    assert any(report.steps == steps for report in reports)


def test_a_seed_is_a_schedule():
    first, again, other = simulate_cluster(7), simulate_cluster(7), simulate_cluster(8)

    assert first == again
    assert first.digest != other.digest


def test_every_order_of_one_step_keeps_the_promises():
    walked = walk_all(workers=2, steps=1, crashes=0)

    assert walked.ends > 10


@pytest.mark.long
@pytest.mark.slow
def test_every_order_of_one_step_with_a_crash_at_every_point_keeps_the_promises():
    walked = walk_all(workers=2, steps=1, crashes=1)

    assert walked.ends > 100


@pytest.mark.long
@pytest.mark.slow
def test_every_order_of_two_steps_keeps_the_promises():
    walked = walk_all(workers=2, steps=2, crashes=0)

    assert walked.ends > 10


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "words"), BUGS, ids=[plant.__name__ for plant, _ in BUGS])
def test_a_broken_promise_is_found(plant, words, monkeypatch):
    plant(monkeypatch)

    found = next((violation for violation in violations(range(300)) if words in violation), "nothing")

    assert "replay with simulate_cluster(" in found


@pytest.mark.parametrize("plant", [commit_early, say_before_recording, forget_the_journal, apply_without_a_commit])
def test_the_walk_finds_a_broken_promise(plant, monkeypatch):
    plant(monkeypatch)

    with pytest.raises(Violation):
        walk_all(workers=2, steps=2, crashes=1)

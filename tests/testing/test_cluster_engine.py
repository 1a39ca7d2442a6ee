"""Whatever fails, the engine's decisions keep the promises; and the proof that wrong decisions would be found."""

from dataclasses import replace

import pytest

from phalanx.buffers import even_part
from phalanx.elastic import Follow, Form, HandOver, Hold, Settle, StepProgress, entry
from phalanx.testing import Violation, simulate_cluster
from phalanx.testing.cluster import trainer


def keep_sums_of_an_older_step(monkeypatch):
    clear = StepProgress.clear

    def clear_but_keep(self):
        pieces = dict(self.pieces)
        clear(self)
        self.pieces.update(pieces)

    monkeypatch.setattr(StepProgress, "clear", clear_but_keep)


def keep_sums_that_were_not_filled(monkeypatch):
    monkeypatch.setattr(StepProgress, "begin_epoch", lambda _: None)


def count_kept_lanes_twice(monkeypatch):
    def plan(own, kept):
        singles = [range(lane, lane + 1) for lane in own]
        return sorted([*(each for each in kept if set(each) <= set(own)), *singles], key=lambda each: each.start)

    monkeypatch.setattr(trainer, "plan_lanes", plan)


def send_the_same_part_from_all_donors(monkeypatch):
    def cut(size, holders):
        return dict.fromkeys(holders, even_part(size, len(holders), 0))

    monkeypatch.setattr(trainer, "cut_copy", cut)


def take_state_from_members_that_are_behind(monkeypatch):
    monkeypatch.setattr(entry, "_held_blocks", lambda stances, _: [each.held for each in stances])


def give_each_block_one_holder(monkeypatch):
    monkeypatch.setattr(entry, "REDUNDANCY", 1)


def forget_what_others_have_found(monkeypatch):
    monkeypatch.setattr(StepProgress, "learn", lambda *_: None)


def vote_with_the_digest_of_the_step_before(monkeypatch):
    commit = trainer.SimulatedTrainer._commit

    def commit_late(self, digest):
        last, self._digest_before = getattr(self, "_digest_before", digest), digest
        return commit(self, last)

    monkeypatch.setattr(trainer.SimulatedTrainer, "_commit", commit_late)


def let_anybody_write(monkeypatch):
    monkeypatch.setattr(trainer, "may_write", lambda *_: True)


def reorder(monkeypatch, change):
    """Change the moves by which members enter an epoch."""
    plan = entry.plan_entry
    monkeypatch.setattr(trainer, "plan_entry", lambda *about: change(plan(*about)))


def move_first(moves, kind, before):
    """Put the move of one kind before that of another, if there are both."""
    found = next((each for each in moves if isinstance(each, kind)), None)
    rest = [each for each in moves if each is not found]
    at = next((number for number, each in enumerate(rest) if isinstance(each, before)), len(rest))
    return [*rest[:at], *([found] if found else []), *rest[at:]]


def follow_before_anything_has_arrived(monkeypatch):
    reorder(monkeypatch, lambda moves: move_first(moves, Follow, entry.CopyWeights))


def drop_state_before_all_have_theirs(monkeypatch):
    reorder(monkeypatch, lambda moves: move_first(moves, Hold, Form))


def stay_new_until_the_end(monkeypatch):
    reorder(monkeypatch, lambda moves: sorted(moves, key=lambda each: isinstance(each, Settle)))


def believe_that_all_have_all_weights(monkeypatch):
    def believe(moves):
        return [replace(each, is_whole=True) if isinstance(each, HandOver | Follow | Form) else each for each in moves]

    reorder(monkeypatch, believe)


BUGS = [
    (keep_sums_of_an_older_step, "added up something else than the lanes of step"),
    (count_kept_lanes_twice, "cannot follow lane"),
    (send_the_same_part_from_all_donors, "other weights"),
    (take_state_from_members_that_are_behind, "other state"),
    (give_each_block_one_holder, "hold block"),
    (forget_what_others_have_found, "and was sent"),
    (vote_with_the_digest_of_the_step_before, "with a digest of other weights"),
    (believe_that_all_have_all_weights, "weights"),
]
RARE_BUGS = [
    (keep_sums_that_were_not_filled, "added up something else than the lanes of step"),
    (let_anybody_write, "wrote after a worker of epoch"),
    (follow_before_anything_has_arrived, "wrong weights"),
    (drop_state_before_all_have_theirs, "was called lost"),
    (stay_new_until_the_end, "was called lost"),
]
HAPPENS = {"pieces used again", "states fetched", "states lost", "steps missed", "weights completed"}


def violations(seeds):
    for seed in seeds:
        try:
            simulate_cluster(seed, steps=10)
        except Violation as violation:
            yield str(violation)


@pytest.mark.slow
def test_everything_that_an_engine_does_about_a_failure_happens():
    reports = [simulate_cluster(seed, steps=10) for seed in range(60)]

    assert {what for report in reports for what in report.counts} >= HAPPENS


def find_violation(words, seeds):
    return next((each for each in violations(seeds) if words in each.partition("\n")[0]), "nothing")


@pytest.mark.parametrize(("plant", "words"), BUGS, ids=[plant.__name__ for plant, _ in BUGS])
def test_a_wrong_decision_is_found(plant, words, monkeypatch):
    plant(monkeypatch)

    assert "replay with simulate_cluster(" in find_violation(words, range(60))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("plant", "words"), RARE_BUGS, ids=[plant.__name__ for plant, _ in RARE_BUGS])
def test_a_wrong_decision_that_seldom_matters_is_found(plant, words, monkeypatch):
    plant(monkeypatch)

    assert "replay with simulate_cluster(" in find_violation(words, range(600))

"""Who costs the most time, and by what."""

from dataclasses import replace

import numpy as np
import pytest
from record_play import Rank, run

from phalanx.telemetry import Activity, Waste, add_up, find_blame, judge, write_report

CASES = {
    "slow backward": ({2: {Activity.BACKWARD: 30}}, (2,), Waste.BACKWARD, 30),
    "slow forward": ({0: {Activity.FORWARD: 30}}, (0,), Waste.FORWARD, 30),
    "late data": ({1: {Activity.DATA: 30}}, (1,), Waste.DATA, 30),
    "garbage collection": ({1: {Activity.BACKWARD: 30, Activity.COLLECT: 30}}, (1,), Waste.COLLECTION, 30),
    "checkpoint": ({0: {Activity.CHECKPOINT: 30}}, (0,), Waste.CHECKPOINT, 30),
    "slow link": ({3: {"link": 30}}, (3,), Waste.LINK, 31),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rank_that_is_slow_is_named_with_the_cause_and_what_it_costs(case):
    slow, ranks, waste, cost = CASES[case]

    report = find_blame(run(4, slow=slow))

    (blame,) = report.blames
    assert (blame.ranks, blame.waste) == (ranks, waste)
    assert blame.seconds * 1e3 == pytest.approx(cost, abs=0.01)
    assert blame.share == pytest.approx(blame.seconds / report.step_s)
    assert f"rank {ranks[0]}" in blame.words


def test_in_a_healthy_run_nobody_is_blamed():
    report = find_blame(run(4))

    assert report.blames == ()
    assert "no rank" in write_report(report)
    assert report.step_s * 1e3 == pytest.approx(67, abs=0.1)


def test_a_rank_with_more_lanes_is_not_to_blame_for_them():
    report = find_blame(run(3, slow={0: {"lanes": 2}}))

    assert report.blames == ()


def test_of_two_ranks_the_link_between_them_is_named():
    (blame,) = find_blame(run(2, slow={0: {"link": 30}})).blames

    assert (blame.ranks, blame.waste) == ((0, 1), Waste.LINK)
    assert "the link between rank 0 and rank 1" in blame.words


@pytest.mark.parametrize(
    ("waits", "ranks"),
    [
        ([[0, 0.5, 1], [0.5, 0, 1], [1, 1, 0]], (2,)),  # 0 and 1 also wait for what the other has not got from 2
        ([[0, 1, 0.3], [1, 0, 0.3], [0.3, 0.3, 0]], (0, 1)),
    ],
)
def test_a_slow_rank_is_told_from_a_slow_link_although_others_wait_in_turn(waits, ranks):
    times = replace(add_up(run(3, transfer=30)), link_waits=np.array(waits))

    (blame,) = judge(times).blames

    assert blame.ranks == ranks


def test_a_slow_exchange_without_waiting_is_no_links_fault():
    (blame,) = find_blame(run(3, transfer=30)).blames

    assert (blame.ranks, blame.waste) == ((), Waste.LINK)


def test_waiting_for_a_rank_that_computes_is_not_blamed_on_its_link():
    (blame,) = find_blame(run(2, slow={1: {Activity.BACKWARD: 300}})).blames

    assert (blame.ranks, blame.waste) == ((1,), Waste.BACKWARD)


def test_what_all_ranks_spend_alike_is_blamed_on_nobody():
    (blame,) = find_blame(run(2, data=30)).blames

    assert (blame.ranks, blame.waste) == ((), Waste.DATA)
    assert "on every rank" in blame.words


def test_only_the_slowest_rank_of_a_step_costs_time():
    report = find_blame(run(4, slow={1: {Activity.BACKWARD: 10}, 2: {Activity.BACKWARD: 30}}))

    (blame,) = report.blames
    assert blame.ranks == (2,)


def test_one_rank_alone_cannot_be_slower_than_others():
    assert find_blame(run(1)).blames == ()


def test_steps_that_some_rank_has_not_written_yet_do_not_count():
    one, other = run(2)[0], run(2, steps=6)[1]

    assert add_up([one, other]).steps.tolist() == list(range(6))


def test_a_step_that_was_taken_again_after_a_resume_counts_once():
    before, after = run(2, steps=6, slow={1: {Activity.BACKWARD: 500}}), run(2, steps=10)
    for each in after:
        each.table["start"] += 10**12
        each.table["end"] += 10**12

    times = add_up([*before, *after])
    assert times.spent[Activity.BACKWARD][:, 1].tolist() == pytest.approx([0.04] * 10)


def test_without_a_step_there_is_no_report():
    rank = Rank(0)
    rank.add(Activity.DATA, 0, 0, 1, number=0)

    assert find_blame([rank.records()]) is None

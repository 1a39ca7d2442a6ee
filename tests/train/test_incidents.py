import pytest
from run_events import HUNG_UP, beginning, ending, loss, newcomer, seats, storm

from phalanx.coordinator.events import (
    CoordinatorStarted,
    EpochBegan,
    Recovered,
    RunEnded,
    WorkerEvicted,
    WorkerLeft,
    WorkerLost,
)
from phalanx.train.incidents import count, find_incidents, join, seconds, sentence


def told(events):
    return [each.words for each in find_incidents(events) if not each.is_minor]


def test_a_calm_run_begins_and_ends():
    assert told(beginning() + ending(1030.0, 50)) == [
        "The run began at step 0 with 4 workers on anvil.",
        "The run ended: all workers left it at step 50.",
    ]


def test_a_beginning_says_which_hosts_there_are():
    members = (*seats(2), *seats(1, "forge"), *seats(1, ""))

    assert told([EpochBegan(1.0, epoch=1, step=0, members=members)]) == [
        "The run began at step 0 with 4 workers, 2 on anvil and 1 on forge."
    ]
    crowd = tuple(seat for number in range(12) for seat in seats(1, f"anvil{number}"))
    assert told([EpochBegan(1.0, epoch=1, step=0, members=crowd)])[0].endswith(
        "1 on anvil7 and others on 4 more hosts."
    )


def test_a_loss_is_told_with_who_where_why_and_how_long():
    _, incident = (each for each in find_incidents(beginning() + loss(1010.0, 20)) if not each.is_minor)

    assert incident.words == (
        "Rank 2 (process 102 on anvil) was lost: its connection closed (it hung up). "
        "Epoch 2 began with 3 workers after 0.01 s, and step 20 counted after 0.30 s."
    )
    assert (incident.time, incident.step, incident.losses, incident.recovery_s) == (1010.0, 20, 1, 0.3)


def test_losses_before_the_next_step_that_counts_are_one_incident():
    events = [
        WorkerLost(1010.0, rank=3, pid=103, host="", words=HUNG_UP),
        WorkerEvicted(1011.0, rank=1, pid=101, host="anvil", words="rank 1 does nothing\nand its traceback"),
        WorkerLeft(1012.0, rank=2, pid=102, host="anvil"),
        EpochBegan(1013.0, epoch=3, step=9, members=seats(1)),
        Recovered(1014.0, epoch=3, step=9, lost=3, members=1, epoch_s=3.0, commit_s=4.0),
    ]

    incident = find_incidents(beginning() + events)[-1]

    assert incident.words == (
        "Rank 3 (process 103) was lost: its connection closed (it hung up). "
        "Rank 1 (process 101 on anvil) was sent away: rank 1 does nothing. "
        "Rank 2 (process 102 on anvil) left. "
        "Epoch 3 began with 1 worker after 3.00 s, and step 9 counted after 4.00 s."
    )
    assert (incident.losses, incident.evictions, incident.leaves) == (1, 1, 1)


def test_very_many_losses_at_once_are_counted():
    lost = [WorkerLost(1010.0 + rank, rank=rank, pid=rank, host="anvil", words=HUNG_UP) for rank in range(300)]

    incident = find_incidents([*beginning(), *lost])[-1]

    assert incident.words.endswith("292 more incidents followed before a step counted. No step has counted since.")
    assert incident.losses == 300


def test_a_newcomer_is_told_with_how_long_the_others_stood_still():
    incident = find_incidents(beginning() + newcomer(1010.0, 25))[-1]

    words = "Rank 3 (process 200 on forge) joined at step 25, and the others stood still for 0.20 s."
    assert (incident.words, incident.joins, incident.stood_still_s) == (words, 1, 0.2)


def test_a_restart_of_the_coordinator_is_told_with_the_next_step_that_counted():
    events = [
        CoordinatorStarted(1020.0, is_restart=True, step=40),
        EpochBegan(1021.0, epoch=2, step=40, members=seats(4)),
        Recovered(1022.0, epoch=2, step=40, lost=0, members=4, epoch_s=1.0, commit_s=2.0),
    ]

    _, incident = (each for each in find_incidents(beginning() + events) if not each.is_minor)

    assert incident.words == (
        "The coordinator was started again on its journal, at step 40. "
        "Epoch 2 began with 4 workers after 1.00 s, and step 40 counted after 2.00 s."
    )
    assert (incident.restarts, incident.recovery_s) == (1, 2.0)


def test_a_run_that_is_resumed_by_a_new_coordinator_is_started_again():
    events = beginning() + ending(1030.0, 50) + beginning(2000.0, 2, step=50)

    assert told(events)[2:] == ["The run was started again at step 50 with 2 workers on anvil."]


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ([], ["No step has counted since."]),
        (
            [RunEnded(1060.0, step=5, words="there were 3 of at least 4 workers", has_halted=True)],
            [
                "No step counted after that.",
                "The run was halted at step 5: there were 3 of at least 4 workers.",
            ],
        ),
        (beginning(2000.0, 1)[:1], ["No step counted after that."]),
    ],
)
def test_a_loss_from_which_nobody_recovered_is_told_as_such(rest, words):
    lost = told(beginning() + loss(1010.0, 5)[:1] + rest)[1:]

    assert [each.removeprefix(f"Rank 2 (process 102 on anvil) was lost: {HUNG_UP}. ") for each in lost] == words


def test_who_came_and_went_without_being_admitted_is_minor():
    events = [*beginning(), WorkerLost(1010.0, rank=None, pid=9, host="forge", words=HUNG_UP)]

    *came, _, lost = find_incidents(events)

    assert all(each.is_minor for each in [*came, lost])
    assert lost.words == f"A worker (process 9 on forge) was lost: {HUNG_UP}."
    assert lost.losses == 0


def test_events_of_which_the_beginning_is_missing_are_told_from_where_they_begin():
    assert told(loss(1010.0, 5)[1:] + newcomer(1020.0, 9)) == [
        "The run began at step 5 with 3 workers on anvil.",
        "Rank 3 (process 200 on forge) joined at step 9, and the others stood still for 0.20 s.",
    ]


def test_words_of_others_cannot_forge_lines_or_fill_the_screen():
    evil = WorkerEvicted(1010.0, rank=1, pid=1, host="an\x1b[2Jvil", words="x" * 5000 + "\nThe run ended")

    words = find_incidents([*beginning(), evil])[-1].words

    assert "on an?[2Jvil" in words
    assert "\n" not in words
    assert len(words) < 600


def test_every_event_of_a_storm_is_counted():
    incidents = find_incidents(storm(100))

    assert sum(each.losses for each in incidents) == sum(each.joins for each in incidents) == 100
    assert len([each for each in incidents if not each.is_minor]) == 202


def test_figures_are_written_as_people_write_them():
    assert [count(number, "worker") for number in (0, 1, 2000)] == ["0 workers", "1 worker", "2,000 workers"]
    assert [seconds(each) for each in (0.004, 12, 300, 9000)] == ["0.00 s", "12.0 s", "5.0 minutes", "2.5 hours"]
    assert [join(each) for each in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
    assert sentence("rank 1 left.") == "Rank 1 left."

import msgspec
import pytest
from run_events import beginning, ending, loss, newcomer, storm
from run_records import make_step

from phalanx.train.incidents import find_incidents
from phalanx.train.record import Result
from phalanx.train.story import Findings, Story, make_story, write_story

LOSS = (
    "Rank 2 (process 102 on anvil) was lost: its connection closed (it hung up). "
    "Epoch 2 began with 3 workers after 0.01 s, and step 20 counted after 0.30 s."
)
NOBODY_KNOWS = "Nothing says how the run ended: it is still going on, or all of it was killed."


def found(events=None, **others):
    return Findings(run_dir="runs/a", incidents=None if events is None else find_incidents(events), **others)


def result(steps, eval_loss=2.25):
    figures = {"loss": 2.0, "tokens_per_s": 1.0, "seconds": 9.0, "unigram_entropy": 3.0}
    return Result(steps=steps, eval_loss=eval_loss, digest="0123456789abcdef0123", workers=4, **figures)


def text_of(findings, **others):
    return write_story(make_story(findings, **others)).splitlines()


def test_a_story_has_what_happened_when_how_it_ended_and_a_summary():
    events = beginning() + loss(1010.0, 20) + newcomer(1015.0, 30) + ending(1030.5, 50)

    assert text_of(found(events)) == [
        "1970-01-01 00:16:41 UTC, runs/a",
        "",
        " 0:00:01.0  The run began at step 0 with 4 workers on anvil.",
        f" 0:00:09.0  {LOSS}",
        " 0:00:15.2  Rank 3 (process 200 on forge) joined at step 30, and the others stood still for 0.20 s.",
        " 0:00:29.5  The run ended: all workers left it at step 50.",
        "",
        "Steps: 50.",
        "In 29.5 s: 1 worker lost and 1 worker joined.",
        "Recoveries: 1, 0.30 s together.",
        "The next step counted after 0.30 s in the median, and after 0.30 s at most.",
        "While workers joined, the others stood still for 0.20 s together.",
    ]


def test_a_run_that_nothing_happened_to_says_so():
    assert text_of(found(beginning() + ending(1030.0, 50)))[-1] == "In 29.0 s: nobody was lost, and nobody joined."


def test_the_facts_are_the_same_however_much_is_told():
    short, whole = (make_story(found(storm(50)), is_whole=is_whole) for is_whole in (False, True))

    assert msgspec.structs.replace(short, told=[]) == msgspec.structs.replace(whole, told=[])
    assert (short.losses, short.joins, len(short.recoveries_s), short.steps) == (50, 50, 50, 500)
    assert short.lost_s == pytest.approx(sum(short.recoveries_s))
    assert (short.median_recovery_s, short.longest_recovery_s) == (pytest.approx(0.3245), pytest.approx(0.349))
    assert short.stood_still_s == pytest.approx(10.0)


@pytest.mark.parametrize("kills", [20, 40, 1000])
def test_a_long_story_stays_readable_and_no_incident_is_missing(kills):
    lines = text_of(found(storm(kills)))

    assert len(lines) <= 50
    assert lines[3].startswith(" 0:00:09.0  Rank 2 (process 102 on anvil) was lost")
    assert f"{kills:,} workers lost and {kills:,} workers joined." in " ".join(lines)


def test_incidents_that_are_put_together_are_counted_and_timed():
    lines = text_of(found(storm(1000)))

    assert lines[12] == (
        " 0:00:52.2  Steps 45 to 540, in 8.3 minutes: 50 workers lost and 50 workers joined. "
        "The next step counted after 0.33 s in the median, and after 0.35 s at most."
    )


def test_all_of_a_long_story_can_be_told():
    lines = text_of(found(storm(1000)), is_whole=True)

    assert len([line for line in lines if "was lost" in line]) == 1000
    assert len([line for line in lines if "came, and waited to be admitted" in line]) == 1004


@pytest.mark.parametrize(
    ("others", "end"),
    [
        ({"result": result(50), "planned_steps": 50}, "The run is complete. The loss on held-out text is 2.250. The "),
        ({"result": result(50, None)}, "The run is complete. The digest of its weights is 0123456789abcdef."),
        ({"result": result(20), "planned_steps": 50}, "The run was stopped after 20 of 50 steps. The loss on "),
        ({}, NOBODY_KNOWS),
    ],
)
def test_the_end_is_told_from_the_result_if_there_is_one(others, end):
    assert text_of(found(beginning(), **others))[4].startswith(end)


def test_a_run_without_events_is_told_from_its_other_files():
    steps = [
        make_step(step, workers=4 if step < 6 else 2, state_digest="d" if step == 4 else None) for step in range(8)
    ]

    assert text_of(found(steps=steps, planned_steps=10, checkpoints=[8])) == [
        "The run in runs/a has no events: nobody wrote them down. Its other files tell this:",
        "",
        NOBODY_KNOWS,
        "Steps: 8 of 10, 6 with 4 workers and 2 with 2 workers.",
        "Checkpoints were saved after these numbers of steps: 5 and 8; still there: 8.",
    ]


def test_a_run_that_has_only_been_prepared_is_told_too():
    assert text_of(found([]))[0] == "The run in runs/a has an empty file of events. Its other files tell this:"
    assert text_of(found())[-1] == "Steps: 0."


def test_many_checkpoints_and_changes_are_counted():
    steps = [make_step(step, workers=1 + step % 3, state_digest="d") for step in range(60)]

    assert text_of(found(steps=steps))[-2:] == [
        "Steps: 60, with 1 to 3 workers, which changed 59 times.",
        "Checkpoints were saved after these numbers of steps: 1, 2, ... 60 (60 in all); none is still there.",
    ]


def test_the_steps_of_a_run_that_goes_on_are_those_that_its_events_show():
    assert make_story(found(beginning() + loss(1010.0, 20))).steps == 21


def test_a_story_survives_json():
    story = make_story(found(storm(3), result=result(30)))

    assert msgspec.json.decode(msgspec.json.encode(story), type=Story) == story

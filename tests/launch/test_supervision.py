"""What becomes of a run when its workers end."""

import pytest

from phalanx.launch.supervision import LEFT, Supervision
from phalanx.launch.verdict import End, Name


def ended(code, **more):
    return End(Name("rank", 1), code=code, at=0.0, **more)


def test_a_worker_that_was_killed_is_replaced_when_the_others_have_finished_the_step():
    supervision = Supervision(4)

    supervision.note_end(ended(-9), step=3, others=3, now=10.0)

    assert supervision.take_due(3, 10.1) == 0
    assert supervision.take_due(4, 10.2) == 1
    assert supervision.take_due(5, 99.0) == 0


def test_a_worker_that_was_killed_is_replaced_soon_even_if_the_others_take_long():
    supervision = Supervision(4)

    supervision.note_end(ended(-9), step=3, others=3, now=10.0)

    assert supervision.take_due(3, 11.9) == 0
    assert supervision.take_due(3, 12.0) == 1


def test_the_last_worker_is_replaced_at_once():
    supervision = Supervision(4)

    supervision.note_end(ended(-9), step=3, others=0, now=10.0)

    assert supervision.take_due(3, 10.0) == 1


@pytest.mark.parametrize("end", [ended(0), ended(1), ended(LEFT), ended(-15, was_stopped=True)])
def test_a_worker_that_ended_by_itself_or_was_stopped_is_not_replaced(end):
    supervision = Supervision(4)

    supervision.note_end(end, step=3, others=0, now=10.0)

    assert supervision.take_due(3, 99.0) == 0


def test_nobody_is_replaced_once_a_worker_has_come_to_the_end():
    supervision = Supervision(4)

    supervision.note_end(ended(-9), step=3, others=0, now=10.0)
    supervision.note_end(ended(0), step=3, others=0, now=10.0)

    assert supervision.is_over
    assert supervision.take_due(3, 99.0) == 0


def test_the_pauses_grow_while_no_step_is_taken():
    supervision, now, pauses = Supervision(2), 0.0, []

    for _ in range(8):
        supervision.note_end(ended(-11), step=7, others=0, now=now)
        pauses.append(next(pause for pause in (0.0, 0.5, 1.0, 2.0, 4.0) if supervision.take_due(7, now + pause)))

    assert pauses == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 2.0, 2.0]


def test_a_step_between_ends_the_row():
    supervision = Supervision(1)
    for step in range(20):
        supervision.note_end(ended(-9), step=step, others=0, now=0.0)

        assert supervision.take_due(step, 0.0) == 1


def test_workers_that_keep_dying_are_given_up_with_a_reason():
    supervision = Supervision(1)

    for _ in range(6):
        supervision.note_end(ended(-11), step=7, others=0, now=0.0)

    assert supervision.take_due(3, 99.0) == 0
    assert supervision.reason == (
        "6 workers died one after another at step 7, and no step was taken between: "
        "the last one, rank 1, was killed by SIGSEGV"
    )


def test_workers_that_will_be_started_later_are_counted():
    supervision = Supervision(4)

    supervision.note_end(ended(-9), step=3, others=3, now=10.0)
    supervision.note_end(ended(LEFT), step=3, others=2, now=10.0)

    assert supervision.waiting == 1  # not the one that left: its place is free for another

"""What outlives an epoch: sums that are complete, and results that the members have found together."""

from phalanx.elastic import StepProgress


def test_sums_are_kept_once_they_are_complete():
    progress = StepProgress()
    progress.keep([(range(2), "too early")])
    progress.is_complete = True
    progress.keep([(range(2), "sum")])

    assert progress.pieces == {range(2): "sum"}
    assert progress.spans == ((0, 2),)


def test_an_epoch_that_ends_before_anything_was_added_up_leaves_the_kept_sums_alone():
    progress = StepProgress()
    progress.is_complete = True
    progress.keep([(range(2), "sum")])

    progress.begin_epoch()
    progress.keep([(range(2), "not filled")])

    assert progress.pieces == {range(2): "sum"}


def test_a_result_that_the_others_have_found_is_not_found_again():
    progress = StepProgress()
    progress.note(1.0)
    assert progress.take() == 1.0

    progress.learn([1.0, 2.0])

    assert progress.has_found
    assert progress.take() == 2.0
    assert not progress.has_found


def test_nothing_of_a_step_is_left_behind_it():
    progress = StepProgress()
    progress.outcomes[0] = "lane"
    progress.is_complete = True
    progress.keep([(range(1), "sum")])
    progress.note(1.0)

    progress.clear()

    assert (progress.outcomes, progress.spans, progress.results, progress.is_complete) == ({}, (), [], False)

import pytest
import torch_checks
from torch_ranks import run

FORMS = [torch_checks.copies, torch_checks.other_forms, torch_checks.sparse]


@pytest.mark.slow
def test_every_reduction_of_every_type_gives_what_gloo_gives():
    found, expected = (run(torch_checks.reductions, backend=backend) for backend in ("phalanx", "gloo"))

    assert found == expected


@pytest.mark.parametrize("check", FORMS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_tensors_end_where_gloo_puts_them(check, size):
    found, expected = (run(check, size=size, backend=backend) for backend in ("phalanx", "gloo"))

    assert found == expected


def test_types_that_gloo_lacks_are_moved_too():
    for found in run(torch_checks.copies, torch_checks.BEYOND_GLOO):
        same = list(found.values())
        assert len(same) == 4
        assert all(each == same[0] for each in same)


def test_lists_may_have_tensors_of_different_lengths():
    first, second = run(torch_checks.unequal_lists)

    assert first == [[0.0], [1.0], [0.0], [1.0, 1.0], [0.0]]
    assert second == [[0.0, 0.0], [1.0, 1.0], [0.0], [1.0, 1.0], [2.0, 2.0]]


def test_inputs_are_multiplied_before_they_are_added():
    assert run(torch_checks.premultiplied) == [([1.5] * 4, [1.0, 1.0])] * 2


def test_messages_are_taken_by_tag_and_from_any_source():
    first, second, third = run(torch_checks.messages, size=3)

    assert first == ([1, 7], 1)
    assert second == ([[1.0] * 4, [2.0] * 4, [3.0] * 4], [2_999_997.0, 2_999_998.0, 2_999_999.0])
    assert third is None


@pytest.mark.slow
def test_groups_overlap_and_a_mesh_has_a_group_for_each_dimension():
    found = run(torch_checks.subgroups, size=4)

    assert found == [[1, 3, 2, 1], [1, 3, 4, 1], [3, 5, 2, 5], [5, 3, 4, 5]]


@pytest.mark.slow
def test_what_cannot_be_done_is_refused_in_words_and_harms_nothing():
    for words, total in run(torch_checks.failing_calls):
        assert "cannot reduce tensors of torch.int16: convert to one of float64" in words[0]
        assert "floats have no bitwise" in words[1]
        assert "3 rows cannot be split evenly over 2 ranks" in words[2]
        assert total == 2


def test_ranks_that_disagree_are_both_named():
    for words in run(torch_checks.mismatch):
        assert "all_reduce(sum) of 3 f32" in words
        assert "all_reduce(sum) of 4 f32" in words


def test_a_rank_that_is_late_is_named():
    assert "rank 1 did not come to call" in run(torch_checks.late)[0]


def test_a_lost_rank_is_named_by_wait_by_a_future_and_by_later_calls():
    (words,) = run(torch_checks.losing_a_rank, survivors=[0])

    assert [each.split(":")[0] for each in words] == ["PeerLost", "RuntimeError", "PeerLost"]
    assert all("rank 1" in each for each in words)
    assert "PeerLost" in words[1]


@pytest.mark.slow
def test_a_lost_rank_is_named_by_backward():
    (words,) = run(torch_checks.losing_a_rank_in_backward, survivors=[0])

    assert "PeerLost" in words
    assert "rank 1" in words

"""Where gradients of GPUs meet: decided from what the ranks say, and always with a reason."""

import pytest

from phalanx.parallel.device import Gpu, Meeting, choose_route

ONE, OTHER = b"one", b"other"


@pytest.mark.parametrize(
    ("gpus", "hosts", "is_elastic", "meeting", "reason"),
    [
        ([Gpu(ONE)], 1, True, Meeting.DEVICE, "one rank"),
        ([Gpu(ONE)] * 3, 1, True, Meeting.DEVICE, "all 3 ranks are on one GPU"),
        ([Gpu(ONE), Gpu(ONE, is_left_out=True)], 1, False, Meeting.STAGED, "rank 1 was asked to"),
        ([Gpu(ONE)] * 4, 2, False, Meeting.HOST, "each of 2 hosts"),
        ([Gpu(ONE), Gpu(ONE), Gpu(OTHER)], 1, False, Meeting.STAGED, "rank 2 has another GPU"),
        ([Gpu(ONE)] * 4 + [Gpu(OTHER)], 1, False, Meeting.HOST, "rank 4 has another GPU"),
        ([Gpu(ONE, has_mps=True)] * 2, 1, False, Meeting.DEVICE, "one GPU"),
        ([Gpu(ONE), Gpu(ONE, has_mps=True)], 1, True, Meeting.STAGED, "MPS serves rank 1"),
    ],
)
def test_ranks_meet_on_a_gpu_that_they_share_unless_something_forbids_it(gpus, hosts, is_elastic, meeting, reason):
    route = choose_route(gpus, hosts, is_elastic=is_elastic)

    assert route.meeting is meeting
    assert reason in str(route)
    assert meeting.value in str(route)


@pytest.mark.parametrize("ranks", [1, 2])
def test_sums_that_are_checked_meet_in_memory_of_the_host(ranks):
    route = choose_route([Gpu(ONE)] * ranks, 1, is_elastic=False, is_checked=True)

    assert route.meeting is Meeting.HOST
    assert "paranoid" in route.reason

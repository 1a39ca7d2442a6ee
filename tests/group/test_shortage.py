"""No descriptor or no memory left: an error that says which limit that is and what to do, on a group of real ranks."""

import contextlib
import os
import resource

import numpy as np
import pytest

from phalanx.errors import ConfigError, OutOfResources, PeerLost
from phalanx.testing import World


def leave_descriptors(count):
    """Allow this process only so many descriptors more than it has, and return the limit that it then has."""
    limit = max(int(name) for name in os.listdir("/proc/self/fd")) + count + 1  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.dup(0))
    for descriptor in taken[len(taken) - count :]:
        os.close(descriptor)
    return limit


def test_buffers_for_which_no_descriptor_is_left_are_refused_in_words_and_the_group_goes_on():
    def on_rank(group):
        limit = leave_descriptors(6)
        with pytest.raises(ConfigError) as caught:
            [group.allocate(1000) for _ in range(20)]
        assert f"this process may have {limit} open files and has them all" in str(caught.value)
        assert f"`ulimit -n {2 * limit}`" in str(caught.value)
        return float(group.all_reduce(np.ones(3))[0])

    assert World(2, "arena", processes=True).run(on_rank) == [2.0, 2.0]


@pytest.mark.parametrize("over", ["tcp", "arena"])
def test_a_link_for_which_no_descriptor_is_left_fails_in_words_on_all_ranks(over):
    def on_rank(group):
        group.barrier()
        if group.rank == 1:
            leave_descriptors(0)
            group.send(np.zeros(3), 0)
        group.recv(np.zeros(3), 1)

    outcomes = World(2, over, processes=True).start(on_rank).outcomes()

    assert [type(outcome.error) for outcome in outcomes] == [PeerLost, OutOfResources]
    assert "cannot make a link to rank 0: this process may have" in str(outcomes[1].error)
    assert "rank 1 failed: phalanx.errors.OutOfResources: cannot make a link to rank 0" in str(outcomes[0].error)


@pytest.mark.parametrize("count", [0, 2, 4, 6, 10])
def test_a_rank_without_descriptors_to_join_with_says_so(count, monkeypatch):
    def join(world, rank, *arguments):
        leave_descriptors(count)
        return joined(world, rank, *arguments)

    joined = World.join
    monkeypatch.setattr(World, "join", join)

    (outcome,) = World(1, "arena", processes=True, timeout_s=20).start(lambda group: group.rank).outcomes()

    if count < 8:
        assert "raise the limit with `ulimit -n " in str(outcome.error)


def test_memory_that_the_process_may_not_have_is_refused_in_words_and_the_group_goes_on():
    def on_rank(group):
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: PTH123, SIM115
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 26), resource.getrlimit(resource.RLIMIT_AS)[1]))
        with pytest.raises(ConfigError, match=r"cannot have 1073741824 bytes of shared memory: .*ulimit -v"):
            group.allocate(1 << 30, np.uint8)
        return float(group.all_reduce(np.ones(3))[0])

    assert World(2, "arena", processes=True).run(on_rank) == [2.0, 2.0]

"""Memberships that follow one another, as torch 2.14's ``reconfigure`` asks for them."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import numpy as np
import pytest

from phalanx.errors import ConfigError
from phalanx.torch.reconfigure import Handle

TIMEOUT = timedelta(seconds=60)


def meet(handles, uuid):
    """What all members add up, each in a thread of its own, before they leave again."""

    def on_member(handle):
        with handle.meet(handles, uuid, TIMEOUT) as group:
            return group.rank, group.all_reduce(np.ones(1)).item()

    with ThreadPoolExecutor(len(handles)) as pool:
        return list(pool.map(on_member, handles))


def test_members_come_and_go_and_get_the_ranks_of_their_handles():
    first, second, third = (Handle.decode(Handle.reserve().encode()) for _ in range(3))

    assert meet([first, second], "one") == [(0, 2), (1, 2)]
    assert meet([third, first, second], "two") == [(0, 3), (1, 3), (2, 3)]
    assert meet([first, third], "three") == [(0, 2), (1, 2)]
    assert meet([second], "four") == [(0, 1)]


def test_only_members_can_meet():
    stranger, member = Handle.reserve(), Handle.reserve()

    with pytest.raises(ConfigError, match="not among the handles"):
        stranger.meet([member], "one", TIMEOUT)


def test_words_that_are_no_handle_are_refused():
    with pytest.raises(ConfigError, match="no handle of the phalanx backend"):
        Handle.decode("{}")

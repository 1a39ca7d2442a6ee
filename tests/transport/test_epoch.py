import select
import threading
from contextlib import closing

import pytest

from phalanx.errors import DeadlineExceeded, PeerLost
from phalanx.transport import Epoch


def is_readable(epoch):
    return bool(select.select([epoch], [], [], 0)[0])


def test_an_epoch_that_holds_lets_everybody_go_on():
    with closing(Epoch(3)) as epoch:
        epoch.check()

        assert not is_readable(epoch)


def test_a_revoked_epoch_raises_its_reason_each_time():
    with closing(Epoch(1)) as epoch:
        epoch.revoke(PeerLost("rank 2 went away", peer=2))

        for _ in range(2):
            with pytest.raises(PeerLost, match="rank 2 went away") as caught:
                epoch.check()
            assert caught.value.peer == 2
        assert is_readable(epoch)


def test_every_thread_gets_an_error_of_its_own():
    with closing(Epoch(1)) as epoch:
        epoch.revoke(PeerLost("gone", peer=2))

        with pytest.raises(PeerLost) as first:
            epoch.check()
        with pytest.raises(PeerLost) as second:
            epoch.check()

        assert first.value is not second.value


def test_the_first_reason_stays():
    with closing(Epoch(1)) as epoch:
        epoch.revoke(PeerLost("rank 2 went away", peer=2))

        epoch.revoke(DeadlineExceeded("rank 3 is late", peer=3))

        with pytest.raises(PeerLost, match="rank 2"):
            epoch.check()


def test_a_wait_on_the_descriptor_ends_when_the_epoch_is_revoked():
    with closing(Epoch(1)) as epoch:
        revoking = threading.Thread(target=epoch.revoke, args=(PeerLost("gone"),))

        revoking.start()
        readable, _, _ = select.select([epoch], [], [], 10)
        revoking.join()

        assert readable == [epoch]


def test_a_rank_that_left_is_remembered_and_does_not_end_the_epoch():
    with closing(Epoch(1)) as epoch:
        epoch.leave(2)
        epoch.leave(0)

        epoch.check()
        assert epoch.left == {0, 2}


def test_closing_twice_and_revoking_afterwards_are_harmless():
    epoch = Epoch(1)

    epoch.close()
    epoch.close()
    epoch.revoke(PeerLost("too late"))

    with pytest.raises(PeerLost, match="too late"):
        epoch.check()

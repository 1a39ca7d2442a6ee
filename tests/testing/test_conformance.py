"""The conformance suite can fail: every rule catches a link that breaks it."""

import threading

import pytest

from phalanx.errors import LinkClosed, PeerLost
from phalanx.testing import check_link
from phalanx.transport import StreamLink, memory_pair


class Broken(StreamLink):
    """A sound link, to be broken in one way by each of the classes below."""


class ForgetsBytes(Broken):
    def send_nowait(self, data):
        return super().send_nowait(data[:-1]) + 1 if len(data) > 1 else super().send_nowait(data)


class RepeatsBytes(Broken):
    def send_nowait(self, data):
        sent = super().send_nowait(data)
        if sent == len(data) == 4:
            super().send_nowait(data[:1])
        return sent


class ChangesBytes(Broken):
    def receive_nowait(self, into):
        received = super().receive_nowait(into)
        if received:
            into[received - 1] ^= 1
        return received


class ReportsTooMuch(Broken):
    def send_nowait(self, data):
        return super().send_nowait(data) + 1


class LosesItsPeerWithoutRoom(Broken):
    def receive_nowait(self, into):
        if not len(into):
            raise PeerLost("nothing came", peer=self.peer)
        return super().receive_nowait(into)


class LosesWhatDoesNotFit(Broken):
    def send_nowait(self, data):
        super().send_nowait(data)
        return len(data)


class WaitsForRoom(Broken):
    def __init__(self, connected, peer):
        super().__init__(connected, peer)
        self._closed = threading.Event()

    def send_nowait(self, data):
        if not (sent := super().send_nowait(data)):
            self._closed.wait(20)
        return sent

    def close(self):
        self._closed.set()
        super().close()


class IsNeverReadable(Broken):
    """Its descriptor is that of another link, where nothing ever comes."""

    def __init__(self, connected, peer):
        super().__init__(connected, peer)
        self._other = memory_pair(0, 1)

    def fileno(self):
        super().fileno()
        return self._other[0].fileno()

    def close(self):
        super().close()
        for end in self._other:
            end.close()


class TakesEverything(LosesWhatDoesNotFit, IsNeverReadable):
    """It is always writable, and takes what it has no room for."""


class StaysOpen(Broken):
    def send_nowait(self, data):
        try:
            return super().send_nowait(data)
        except LinkClosed:
            return len(data)


class NamesNobody(Broken):
    def receive_nowait(self, into):
        try:
            return super().receive_nowait(into)
        except PeerLost:
            raise PeerLost("somebody went away") from None


class HidesTheEnd(Broken):
    def receive_nowait(self, into):
        try:
            return super().receive_nowait(into)
        except PeerLost:
            return 0


class LeaksErrors(Broken):
    def send_nowait(self, data):
        return self._socket.send(data)


def pair_of(kind):
    left, right = memory_pair(0, 1)
    return kind(left._socket, 1), kind(right._socket, 0)


@pytest.mark.parametrize(
    ("kind", "rule", "timeout_s"),
    [
        (ForgetsBytes, "bytes arrive once and in order: bytes that were sent never arrived", 1.0),
        (RepeatsBytes, "bytes arrive once and in order: more bytes arrived than were sent", 10),
        (ChangesBytes, "bytes arrive once and in order: other bytes", 10),
        (ReportsTooMuch, "bytes arrive once and in order: .* were reported as sent", 10),
        (LosesItsPeerWithoutRoom, "nothing to send and no room are harmless: nothing came", 10),
        (LosesWhatDoesNotFit, "a full link takes no more and loses nothing: bytes that were sent never arrived", 1.0),
        (IsNeverReadable, "nothing to send and no room are harmless: a byte that was sent never arrived", 10),
        (WaitsForRoom, "the link waits, and no link may", 0.3),
        (StaysOpen, "a link closed here is closed: sending raised no LinkClosed", 10),
        (NamesNobody, "a link closed there .*: receiving raised PeerLost naming rank None, not 1", 10),
        (HidesTheEnd, "a link closed there .*: receiving raised no PeerLost", 10),
        (LeaksErrors, "a link closed here is closed: .*Bad file descriptor", 10),
    ],
)
def test_a_link_that_breaks_a_rule_is_caught(kind, rule, timeout_s):
    with pytest.raises(AssertionError, match=rule):
        check_link(lambda: pair_of(kind), timeout_s=timeout_s)


def test_a_link_without_bounds_is_caught():
    def make_pair():
        left, right = pair_of(Broken)
        return TakesEverything(left._socket, 1), right

    with pytest.raises(
        AssertionError, match=r"a full link .* bytes were taken that nobody reads: room must be bounded"
    ):
        check_link(make_pair)


def test_a_sound_link_passes():
    check_link(lambda: pair_of(Broken))

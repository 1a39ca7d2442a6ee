"""Checks of what ``Link`` promises, for every transport."""

import threading
from collections.abc import Callable
from contextlib import closing

import numpy as np

from phalanx.errors import LinkClosed, PeerLost, PhalanxError
from phalanx.transport import Deadline, Epoch, Link, wait_for_links

_A_MOMENT_S = 0.02  # long enough to see that a link is not ready
_LARGE_BYTES = 8 << 20  # more than any socket holds: whoever sends all before receiving never comes through
_BOUND_BYTES = 1 << 27


def check_link(make_pair: Callable[[], tuple[Link, Link]], *, timeout_s: float = 10.0) -> None:
    """Raise AssertionError, which says what rule was broken, unless a link keeps the contract of ``Link``.

    ``make_pair`` returns both ends of a new link. Each rule gets a link of its own, and may take ``timeout_s``.
    """
    for rule in _RULES:
        _check(rule, make_pair, timeout_s)


class _Send:
    """Bytes that one end sends."""

    def __init__(self, link: Link, data: bytes) -> None:
        self.link = link
        self._waiting = memoryview(data)

    @property
    def is_done(self) -> bool:
        return not self._waiting

    def advance(self) -> int:
        sent = self.link.send_nowait(self._waiting)
        assert 0 <= sent <= len(self._waiting), f"{sent} of {len(self._waiting)} bytes were reported as sent"
        self._waiting = self._waiting[sent:]
        return sent


class _Receive:
    """Bytes that one end must receive, into room of a fixed size."""

    def __init__(self, link: Link, data: bytes, room_bytes: int = 1 << 20) -> None:
        self.link = link
        self._expected = memoryview(data)
        self._room = memoryview(bytearray(room_bytes))

    @property
    def is_done(self) -> bool:
        return not self._expected

    @property
    def missing(self) -> int:
        return len(self._expected)

    def advance(self) -> int:
        received = self.link.receive_nowait(self._room)
        assert 0 <= received <= len(self._room), f"{received} bytes were reported for room of {len(self._room)}"
        assert received <= len(self._expected), "more bytes arrived than were sent"
        assert self._room[:received] == self._expected[:received], "other bytes arrived than were sent"
        self._expected = self._expected[received:]
        return received


class _Pair:
    """Both ends of a link, and what is needed to wait for them."""

    def __init__(self, left: Link, right: Link, epoch: Epoch, deadline: Deadline) -> None:
        self.left = left
        self.right = right
        self.epoch = epoch
        self.deadline = deadline

    def carry(self, *transfers: _Send | _Receive) -> None:
        """Send and receive, whatever is possible, until all is done."""
        while unfinished := [each for each in transfers if not each.is_done]:
            if sum(each.advance() for each in unfinished) == 0:
                sending = [each.link for each in unfinished if isinstance(each, _Send)]
                receiving = {each.link: each.missing for each in unfinished if isinstance(each, _Receive)}
                ready = wait_for_links(sending, receiving, self.deadline, self.epoch)
                assert ready, "bytes that were sent never arrived"

    def can_send(self, link: Link) -> bool:
        return bool(wait_for_links([link], {}, Deadline.after(_A_MOMENT_S), self.epoch))

    def can_receive(self, link: Link) -> bool:
        return bool(wait_for_links([], {link: 1}, Deadline.after(_A_MOMENT_S), self.epoch))


def _bytes_arrive_once_and_in_order(pair: _Pair) -> None:
    data = _pattern(100_003)

    pair.carry(_Send(pair.left, data), _Receive(pair.right, data, room_bytes=997))
    pair.carry(_Send(pair.left, b"last"), _Receive(pair.right, b"last"))

    assert not pair.can_receive(pair.right), "more bytes arrived than were sent"


def _nothing_to_send_and_no_room_are_harmless(pair: _Pair) -> None:
    assert pair.left.send_nowait(memoryview(b"")) == 0, "sending nothing must return 0"
    assert pair.right.receive_nowait(memoryview(bytearray(9))) == 0, "nothing was sent, but something arrived"
    pair.carry(_Send(pair.left, b"x"))
    assert pair.can_receive(pair.right), "a byte that was sent never arrived"
    assert pair.right.receive_nowait(memoryview(bytearray())) == 0, "receiving without room must return 0"


def _a_full_link_takes_no_more_and_loses_nothing(pair: _Pair) -> None:
    piece = memoryview(_pattern(1 << 18))
    taken = bytearray()

    while pair.can_send(pair.left):
        taken += piece[: pair.left.send_nowait(piece)]
        assert len(taken) < _BOUND_BYTES, f"{len(taken)} bytes were taken that nobody reads: room must be bounded"
    pair.carry(_Receive(pair.right, bytes(taken)))

    assert pair.can_send(pair.left), "there must be room again once everything was received"


def _large_transfers_cross(pair: _Pair) -> None:
    data = _pattern(_LARGE_BYTES)

    pair.carry(_Send(pair.left, data), _Send(pair.right, data), _Receive(pair.left, data), _Receive(pair.right, data))


def _readiness_says_when_to_go_on(pair: _Pair) -> None:
    assert pair.can_send(pair.left), "an empty link must be ready for sending"
    assert not pair.can_receive(pair.left), "a link without bytes must not be ready for receiving"

    pair.carry(_Send(pair.right, b"x"))

    assert pair.can_receive(pair.left), "a link with bytes must be ready for receiving"


def _a_revoked_epoch_ends_the_wait(pair: _Pair) -> None:
    reason = PeerLost("the epoch is over", peer=7)
    revoking = threading.Thread(target=pair.epoch.revoke, args=(reason,), name="revoke")

    def wait() -> None:
        wait_for_links([], {pair.left: 1}, pair.deadline, pair.epoch)

    revoking.start()
    _expect(PeerLost, wait, "waiting", reason.peer)
    revoking.join()


def _a_link_closed_here_is_closed(pair: _Pair) -> None:
    pair.left.close()
    pair.left.close()

    _expect(LinkClosed, lambda: pair.left.send_nowait(memoryview(b"x")), "sending", pair.left.peer)
    _expect(LinkClosed, lambda: pair.left.receive_nowait(memoryview(bytearray(1))), "receiving", pair.left.peer)
    _expect(LinkClosed, pair.left.fileno, "asking for the descriptor", pair.left.peer)


def _a_link_closed_there_loses_its_peer_after_the_last_byte(pair: _Pair) -> None:
    data = _pattern(10_000)
    pair.carry(_Send(pair.right, data))

    pair.right.close()
    pair.carry(_Receive(pair.left, data))

    assert pair.can_receive(pair.left), "a link whose peer hung up must be ready for receiving"
    _expect(PeerLost, lambda: pair.left.receive_nowait(memoryview(bytearray(1))), "receiving", pair.left.peer)
    _expect(PeerLost, lambda: _send_until_refused(pair), "sending", pair.left.peer)


_RULES = (
    _bytes_arrive_once_and_in_order,
    _nothing_to_send_and_no_room_are_harmless,
    _a_full_link_takes_no_more_and_loses_nothing,
    _large_transfers_cross,
    _readiness_says_when_to_go_on,
    _a_revoked_epoch_ends_the_wait,
    _a_link_closed_here_is_closed,
    _a_link_closed_there_loses_its_peer_after_the_last_byte,
)


def _check(rule: Callable[[_Pair], None], make_pair: Callable[[], tuple[Link, Link]], timeout_s: float) -> None:
    """Check one rule in a thread of its own, which is abandoned if the link blocks it for ever."""
    name = rule.__name__.strip("_").replace("_", " ")
    found: list[Exception] = []

    def work() -> None:
        left, right = make_pair()
        with closing(Epoch(1)) as epoch, closing(left), closing(right):
            try:
                rule(_Pair(left, right, epoch, Deadline.after(timeout_s)))
            except Exception as error:  # noqa: BLE001 - it is raised again where the test is
                found.append(error)

    worker = threading.Thread(target=work, name=name, daemon=True)
    worker.start()
    worker.join(2 * timeout_s)  # the deadline ends every wait but the link's own
    if worker.is_alive():
        raise AssertionError(f"{name}: the link waits, and no link may")
    for error in found:
        raise AssertionError(f"{name}: {str(error) or type(error).__name__}") from error


def _expect(kind: type[LinkClosed | PeerLost], action: Callable[[], object], what: str, peer: int | None) -> None:
    try:
        action()
    except kind as error:
        if error.peer != peer:
            raise AssertionError(f"{what} raised {kind.__name__} naming rank {error.peer}, not {peer}") from error
    except PhalanxError as error:
        raise AssertionError(f"{what} raised {error!r} instead of {kind.__name__}") from error
    else:
        raise AssertionError(f"{what} raised no {kind.__name__}")


def _send_until_refused(pair: _Pair) -> None:
    """Send to a closed end until that fails: it may take a moment before this end knows."""
    while not pair.deadline.has_passed:
        pair.left.send_nowait(memoryview(b"x"))


def _pattern(size_bytes: int) -> bytes:
    """Return bytes in which it shows if some are lost, doubled or exchanged."""
    return np.arange(-(-size_bytes // 4), dtype=np.uint32).tobytes()[:size_bytes]

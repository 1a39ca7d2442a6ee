import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from link_pairs import send_all

from phalanx.errors import ConnectError, PeerLost
from phalanx.transport import Deadline, Epoch, Listener, MemorySwitchboard, TcpLobby, wait_for_links
from phalanx.wire import HEADER_BYTES, Header, Kind, Leave, LinkHello, Tag, decode, encode

KEY, LATER_KEY, WRONG_KEY = bytes(16), b"l" * 16, b"w" * 16
SIZE = 3

STRANGERS = {
    "garbage": b"\x00\xff" * 100,
    "silence": b"",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "another key": encode(LinkHello(epoch=1, rank=1, key=WRONG_KEY)),
    "half a hello": encode(LinkHello(epoch=1, rank=1, key=KEY))[:70],
    "another message": encode(Leave()),
    "a promise of too much": Header(Kind.CONTROL, Tag(0, 0, 0), None, 1 << 40).pack(),
}


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def epoch(stack):
    return stack.enter_context(closing(Epoch(1)))


def open_lobbies(stack, size=SIZE):
    listeners = [Listener("127.0.0.1") for _ in range(size)]
    addresses = {rank: [listener.address] for rank, listener in enumerate(listeners)}
    return [stack.enter_context(closing(TcpLobby(listener, addresses))) for listener in listeners]


def call(stack, lobby, data):
    """Connect to a lobby and send ``data``."""
    where = lobby._listener.address
    connected = stack.enter_context(socket.create_connection((where.host, where.port)))
    connected.sendall(data)
    return connected


def hear(link, epoch):
    """The byte that comes over a link."""
    heard = bytearray(1)
    while not link.receive_nowait(memoryview(heard)):
        assert wait_for_links([], [link], Deadline.after(10), epoch)
    return heard[0]


def link_all(switchboards, key=KEY):
    """Link every rank with every other, each in a thread, and return whom each found behind its links."""

    def work(rank):
        peers = [peer for peer in range(len(switchboards)) if peer != rank]
        with closing(Epoch(1)) as epoch, ExitStack() as links:
            linked = switchboards[rank].links(key, rank, peers, Deadline.after(10), epoch)
            for link in linked.values():
                links.callback(link.close)
            assert all(link.peer == peer for peer, link in linked.items())
            for link in linked.values():
                send_all(link, bytes([rank]))
            return {peer: hear(link, epoch) for peer, link in linked.items()}

    with ThreadPoolExecutor(len(switchboards)) as pool:
        return list(pool.map(work, range(len(switchboards))))


EVERYBODY = [{peer: peer for peer in range(SIZE) if peer != rank} for rank in range(SIZE)]


def test_every_rank_is_linked_with_every_other_over_tcp(stack):
    lobbies = open_lobbies(stack)

    assert link_all(lobbies) == EVERYBODY
    assert link_all(lobbies, LATER_KEY) == EVERYBODY


def test_every_rank_is_linked_with_every_other_in_memory():
    with closing(MemorySwitchboard()) as switchboard:
        assert link_all([switchboard] * SIZE) == EVERYBODY


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_does_not_keep_ranks_from_being_linked(stack, stranger):
    lobbies = open_lobbies(stack)
    for lobby in lobbies:
        call(stack, lobby, STRANGERS[stranger])

    assert link_all(lobbies) == EVERYBODY


def test_strangers_that_hang_up_do_not_keep_ranks_from_being_linked(stack):
    lobbies = open_lobbies(stack)
    for data in STRANGERS.values():
        for lobby in lobbies:
            call(stack, lobby, data).close()

    assert link_all(lobbies) == EVERYBODY


def test_a_stranger_is_sent_away_and_named_in_the_log(stack, epoch, caplog):
    lobby = open_lobbies(stack, size=1)[0]
    stranger = call(stack, lobby, STRANGERS["HTTP"].ljust(HEADER_BYTES))
    call(stack, lobby, encode(LinkHello(epoch=1, rank=2, key=KEY)))

    with caplog.at_level(logging.WARNING, "phalanx"):
        linked = lobby.links(KEY, 0, [2], Deadline.after(10), epoch)

    linked[2].close()
    assert stranger.recv(1) == b""
    assert f"refused a connection from 127.0.0.1:{stranger.getsockname()[1]}" in caplog.text
    assert "this looks like HTTP" in caplog.text


def test_who_calls_early_for_a_later_key_is_kept(stack, epoch):
    lobby = open_lobbies(stack, size=1)[0]
    early = call(stack, lobby, encode(LinkHello(epoch=1, rank=1, key=LATER_KEY)))
    call(stack, lobby, encode(LinkHello(epoch=1, rank=2, key=KEY)))

    now = lobby.links(KEY, 0, [2], Deadline.after(10), epoch)
    later = lobby.links(LATER_KEY, 0, [1], Deadline.after(10), epoch)

    now[2].close()
    later[1].close()
    answer = early.makefile("rb").read()
    assert decode(answer[HEADER_BYTES:]) == LinkHello(epoch=1, rank=0, key=LATER_KEY)


def test_bytes_that_follow_a_hello_belong_to_the_link(stack, epoch):
    lobby = open_lobbies(stack, size=1)[0]
    call(stack, lobby, encode(LinkHello(epoch=1, rank=1, key=KEY)) + b"\x01and more")

    link = lobby.links(KEY, 0, [1], Deadline.after(10), epoch)[1]
    heard = hear(link, epoch)

    link.close()
    assert heard == 1


def test_a_hello_may_come_in_pieces(stack, epoch):
    lobby = open_lobbies(stack, size=1)[0]
    hello = encode(LinkHello(epoch=1, rank=1, key=KEY))
    calling = call(stack, lobby, hello[:10])

    with pytest.raises(ConnectError):
        lobby.links(KEY, 0, [1], Deadline.after(0.02), epoch)
    calling.sendall(hello[10:])
    linked = lobby.links(KEY, 0, [1], Deadline.after(10), epoch)

    linked[1].close()
    assert list(linked) == [1]


def test_peers_that_do_not_come_are_named(stack, epoch):
    lobby = open_lobbies(stack, size=1)[0]

    with pytest.raises(ConnectError, match=r"no link to rank 1, rank 2 within 0.02 s") as caught:
        lobby.links(KEY, 0, [1, 2], Deadline.after(0.02), epoch)

    assert caught.value.peer == 1


@pytest.mark.parametrize("make_switchboard", [lambda stack: open_lobbies(stack, 2)[1], lambda _: MemorySwitchboard()])
def test_a_revoked_epoch_ends_the_wait_for_peers(stack, epoch, make_switchboard):
    switchboard = make_switchboard(stack)
    epoch.revoke(PeerLost("rank 0 went away", peer=0))

    with pytest.raises(PeerLost, match="rank 0 went away"):
        switchboard.links(KEY, 1, [0], Deadline.after(10), epoch)


def test_a_memory_peer_that_does_not_come_is_named(epoch):
    with pytest.raises(ConnectError, match="rank 0 did not come") as caught:
        MemorySwitchboard().links(KEY, 1, [0], Deadline.after(0.02), epoch)

    assert caught.value.peer == 0


def test_links_in_memory_that_nobody_came_for_are_dropped(epoch):
    switchboard = MemorySwitchboard()
    link = switchboard.links(KEY, 0, [1], Deadline.after(10), epoch)[1]

    switchboard.close()
    switchboard.close()

    with closing(link), pytest.raises(PeerLost):
        link.receive_nowait(memoryview(bytearray(1)))


def test_closing_a_lobby_twice_drops_whoever_waits_there(stack, epoch):
    lobby = open_lobbies(stack, size=1)[0]
    waiting = [call(stack, lobby, STRANGERS[name]) for name in ("silence", "half a hello", "another key")]
    with pytest.raises(ConnectError):
        lobby.links(KEY, 0, [1], Deadline.after(0.05), epoch)

    lobby.close()
    lobby.close()

    assert [connected.recv(1) for connected in waiting] == [b""] * 3

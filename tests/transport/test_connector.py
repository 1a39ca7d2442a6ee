import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from certificates import make_authority, make_certificate, needs_openssl
from link_pairs import send_all

from phalanx.errors import ConnectError, PeerLost
from phalanx.transport import (
    Acceptor,
    Credentials,
    Deadline,
    Epoch,
    MemoryConnector,
    TcpConnector,
    Tls,
    call,
    wait_for_links,
)
from phalanx.wire import HEADER_BYTES, Address, Header, Kind, Leave, LinkHello, Purpose, Tag, decode, encode

KEY, LATER_KEY, WRONG_KEY = bytes(16), b"l" * 16, b"w" * 16
TOKEN, OTHER_TOKEN = b"a token that is long enough", b"another that is long enough"
SIZE = 3

STRANGERS = {
    "garbage": b"\x00\xff" * 100,
    "silence": b"",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "half an opening": b"PHLX\x01\x02",
}

LOST = {  # they know the token, and yet they are wrong here
    "nothing": b"",
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


def open_connectors(stack, size=SIZE, credentials=None):
    acceptors = [Acceptor("127.0.0.1", 0, each, Purpose.LINK) for each in credentials or [Credentials(TOKEN)] * size]
    addresses = {rank: [acceptor.address] for rank, acceptor in enumerate(acceptors)}
    return [stack.enter_context(closing(TcpConnector(acceptor, addresses))) for acceptor in acceptors]


def knock(stack, connector, data):
    """Connect to a connector and say something, without having proven anything."""
    where = connector._acceptor.address
    connected = stack.enter_context(socket.create_connection((where.host, where.port)))
    connected.sendall(data)
    return connected


def visit(stack, connector, data):
    """Prove ourselves to a connector as soon as somebody is there, and say something."""

    def work():
        connected = call(
            [connector._acceptor.address], Deadline.after(20), Credentials(TOKEN), Purpose.LINK, whom="a connector"
        )
        stack.enter_context(connected)
        connected.sendall(data)
        return connected

    return stack.enter_context(ThreadPoolExecutor(1)).submit(work)


def wait_for_visits(connector, visits, epoch):
    """Stand in the connector until all callers have said what they have to say."""
    have_spoken = False
    while not have_spoken:
        have_spoken = all(visit.done() for visit in visits)
        with pytest.raises(ConnectError):  # once more when all have, so that they are heard
            connector.links(b"n" * 16, 0, [7], Deadline.after(0.02), epoch)


def hear(link, epoch):
    """The byte that comes over a link."""
    heard = bytearray(1)
    while not link.receive_nowait(memoryview(heard)):
        assert wait_for_links([], [link], Deadline.after(10), epoch)
    return heard[0]


def link_all(connectors, key=KEY):
    """Link every rank with every other, each in a thread, and return whom each found behind its links."""

    def work(rank):
        peers = [peer for peer in range(len(connectors)) if peer != rank]
        with closing(Epoch(1)) as epoch, ExitStack() as links:
            linked = connectors[rank].links(key, rank, peers, Deadline.after(10), epoch)
            for link in linked.values():
                links.callback(link.close)
            assert all(link.peer == peer for peer, link in linked.items())
            for link in linked.values():
                send_all(link, bytes([rank]))
            return {peer: hear(link, epoch) for peer, link in linked.items()}

    with ThreadPoolExecutor(len(connectors)) as pool:
        return list(pool.map(work, range(len(connectors))))


EVERYBODY = [{peer: peer for peer in range(SIZE) if peer != rank} for rank in range(SIZE)]


def test_every_rank_is_linked_with_every_other_over_tcp(stack):
    connectors = open_connectors(stack)

    assert link_all(connectors) == EVERYBODY
    assert link_all(connectors, LATER_KEY) == EVERYBODY


def test_every_rank_is_linked_with_every_other_in_memory():
    with closing(MemoryConnector()) as connector:
        assert link_all([connector] * SIZE) == EVERYBODY


@needs_openssl
def test_every_rank_is_linked_with_every_other_over_tls(stack, tmp_path):
    tls = Tls(*make_certificate(tmp_path, make_authority(tmp_path)))

    assert link_all(open_connectors(stack, credentials=[Credentials(TOKEN, tls)] * SIZE)) == EVERYBODY


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_does_not_keep_ranks_from_being_linked(stack, stranger):
    connectors = open_connectors(stack)
    for connector in connectors:
        knock(stack, connector, STRANGERS[stranger])

    assert link_all(connectors) == EVERYBODY


@pytest.mark.parametrize("lost", LOST)
def test_who_is_wrong_here_does_not_keep_ranks_from_being_linked(stack, epoch, lost):
    connectors = open_connectors(stack)
    for connector in connectors:
        wait_for_visits(connector, [visit(stack, connector, LOST[lost])], epoch)

    assert link_all(connectors) == EVERYBODY


def test_strangers_that_hang_up_do_not_keep_ranks_from_being_linked(stack):
    connectors = open_connectors(stack)
    for data in STRANGERS.values():
        for connector in connectors:
            knock(stack, connector, data).close()

    assert link_all(connectors) == EVERYBODY


def test_a_stranger_is_sent_away_and_named_in_the_log(stack, epoch, caplog):
    connector = open_connectors(stack, size=1)[0]
    stranger = knock(stack, connector, STRANGERS["HTTP"])
    visit(stack, connector, encode(LinkHello(epoch=1, rank=2, key=KEY)))

    with caplog.at_level(logging.WARNING, "phalanx"):
        linked = connector.links(KEY, 0, [2], Deadline.after(10), epoch)

    linked[2].close()
    assert b"this looks like HTTP" in stranger.makefile("rb").read()
    assert f"refused a connection from 127.0.0.1:{stranger.getsockname()[1]}" in caplog.text
    assert "this looks like HTTP" in caplog.text


def test_a_rank_with_another_token_is_not_linked(stack, epoch, caplog):
    connectors = open_connectors(stack, credentials=[Credentials(TOKEN), Credentials(OTHER_TOKEN)])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(connectors[0].links, KEY, 0, [1], Deadline.after(0.5), epoch)

        with (
            pytest.raises(ConnectError, match="no link to rank 0: the token is wrong") as caught,
            closing(Epoch(1)) as own_epoch,
        ):
            connectors[1].links(KEY, 1, [0], Deadline.after(600), own_epoch)

    assert caught.value.peer == 0
    assert isinstance(waiting.exception(), ConnectError)
    assert "the token is wrong" in caplog.text


def test_a_stranger_at_a_peer_s_first_address_does_not_hide_the_second(stack):
    def answer():
        connected = stack.enter_context(stranger.accept()[0])
        connected.sendall(b"HTTP/1.1 400 Bad Request\r\n")

    connectors = open_connectors(stack, 2)
    stranger = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    connectors[1]._addresses[0].insert(0, Address(host="127.0.0.1", port=stranger.getsockname()[1]))
    answering = threading.Thread(target=answer)
    answering.start()

    linked = link_all(connectors)

    answering.join()
    assert linked == [{1: 1}, {0: 0}]


def test_a_rank_that_comes_late_does_not_hold_up_the_others(stack, epoch):
    connectors = open_connectors(stack)
    with ThreadPoolExecutor(1) as pool, closing(Epoch(1)) as own_epoch:
        linking = pool.submit(connectors[2].links, KEY, 2, [0, 1], Deadline.after(20), own_epoch)

        links = [connectors[rank].links(KEY, rank, [2], Deadline.after(20), epoch)[2] for rank in (1, 0)]

        links += linking.result().values()
    for link in links:
        link.close()


def test_who_calls_early_for_a_later_key_is_kept(stack, epoch):
    connector = open_connectors(stack, size=1)[0]
    early = visit(stack, connector, encode(LinkHello(epoch=1, rank=1, key=LATER_KEY)))
    wait_for_visits(connector, [early], epoch)
    visit(stack, connector, encode(LinkHello(epoch=1, rank=2, key=KEY)))

    now = connector.links(KEY, 0, [2], Deadline.after(10), epoch)
    later = connector.links(LATER_KEY, 0, [1], Deadline.after(10), epoch)

    now[2].close()
    later[1].close()
    answer = early.result().makefile("rb").read()
    assert decode(answer[HEADER_BYTES:]) == LinkHello(epoch=1, rank=0, key=LATER_KEY)


def test_bytes_that_follow_a_hello_belong_to_the_link(stack, epoch):
    connector = open_connectors(stack, size=1)[0]
    visit(stack, connector, encode(LinkHello(epoch=1, rank=1, key=KEY)) + b"\x01and more")

    link = connector.links(KEY, 0, [1], Deadline.after(10), epoch)[1]
    heard = hear(link, epoch)

    link.close()
    assert heard == 1


def test_a_hello_may_come_in_pieces(stack, epoch):
    connector = open_connectors(stack, size=1)[0]
    hello = encode(LinkHello(epoch=1, rank=1, key=KEY))
    calling = visit(stack, connector, hello[:10])

    wait_for_visits(connector, [calling], epoch)
    calling.result().sendall(hello[10:])
    linked = connector.links(KEY, 0, [1], Deadline.after(10), epoch)

    linked[1].close()
    assert list(linked) == [1]


def test_peers_that_do_not_come_are_named(stack, epoch):
    connector = open_connectors(stack, size=1)[0]

    with pytest.raises(ConnectError, match=r"no link to rank 1, rank 2 within 0.02 s") as caught:
        connector.links(KEY, 0, [1, 2], Deadline.after(0.02), epoch)

    assert caught.value.peer == 1


@pytest.mark.parametrize("make_connector", [lambda stack: open_connectors(stack, 2)[1], lambda _: MemoryConnector()])
def test_a_revoked_epoch_ends_the_wait_for_peers(stack, epoch, make_connector):
    connector = make_connector(stack)
    epoch.revoke(PeerLost("rank 0 went away", peer=0))

    with pytest.raises(PeerLost, match="rank 0 went away"):
        connector.links(KEY, 1, [0], Deadline.after(10), epoch)


def test_a_memory_peer_that_does_not_come_is_named(epoch):
    with pytest.raises(ConnectError, match="rank 0 did not come") as caught:
        MemoryConnector().links(KEY, 1, [0], Deadline.after(0.02), epoch)

    assert caught.value.peer == 0


def test_links_in_memory_that_nobody_came_for_are_dropped(epoch):
    connector = MemoryConnector()
    link = connector.links(KEY, 0, [1], Deadline.after(10), epoch)[1]

    connector.close()
    connector.close()

    with closing(link), pytest.raises(PeerLost):
        link.receive_nowait(memoryview(bytearray(1)))


def test_closing_a_lobby_twice_drops_whoever_waits_there(stack, epoch):
    connector = open_connectors(stack, size=1)[0]
    waiting = [knock(stack, connector, STRANGERS[name]) for name in ("silence", "half an opening")]
    lost = [visit(stack, connector, LOST[name]) for name in ("half a hello", "another key")]
    wait_for_visits(connector, lost, epoch)

    connector.close()
    connector.close()

    assert [connected.recv(1) for connected in (*waiting, *(each.result() for each in lost))] == [b""] * 4

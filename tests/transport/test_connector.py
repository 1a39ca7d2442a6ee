import hashlib
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from certificates import make_authority, make_certificate, needs_openssl
from link_pairs import send_all

from phalanx.errors import ConnectError, LinkClosed, PeerLost
from phalanx.transport import (
    Acceptor,
    Credentials,
    Deadline,
    Epoch,
    LazyLink,
    MemoryConnector,
    TcpConnector,
    Tls,
    call,
    memory_pair,
    wait_for_links,
)
from phalanx.wire import HEADER_BYTES, Address, Header, Kind, Leave, LinkHello, Purpose, Tag, decode, encode

KEY, LATER_KEY, WRONG_KEY, EPOCH_KEY = bytes(16), b"l" * 16, b"w" * 16, b"e" * 16
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
    return [
        stack.enter_context(closing(TcpConnector(acceptor, addresses, LinkHello(1, rank, EPOCH_KEY))))
        for rank, acceptor in enumerate(acceptors)
    ]


def knock(stack, connector, data):
    """Connect to a connector and say something, without having proven anything."""
    where = connector._acceptor.address
    connected = stack.enter_context(socket.create_connection((where.host, where.port)))
    connected.sendall(data)
    return connected


def visit(stack, connector, data):
    """Prove ourselves to a connector, and say something."""
    where = [connector._acceptor.address]
    connected = call(where, Deadline.after(20), Credentials(TOKEN), Purpose.LINK, whom="a connector")
    stack.enter_context(connected)
    connected.sendall(data)
    return connected


def hear(link, epoch):
    """The byte that comes over a link."""
    heard = bytearray(1)
    while not link.receive_nowait(memoryview(heard)):
        assert wait_for_links([], {link: 1}, Deadline.after(10), epoch)
    return heard[0]


def link_all(connectors, key=KEY):
    """Link every rank with every other, each in a thread, and return whom each found behind its links."""

    def work(rank):
        peers = [peer for peer in range(len(connectors)) if peer != rank]
        with closing(Epoch(1)) as epoch, ExitStack() as links:
            linked = {}
            for peer in peers:
                make = connectors[rank].dial if rank > peer else connectors[rank].accept
                linked[peer] = links.enter_context(closing(make(key, rank, peer, Deadline.after(10), epoch)))
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
def test_who_is_wrong_here_does_not_keep_ranks_from_being_linked(stack, lost):
    connectors = open_connectors(stack)
    for connector in connectors:
        visit(stack, connector, LOST[lost])

    assert link_all(connectors) == EVERYBODY


def test_strangers_that_hang_up_do_not_keep_ranks_from_being_linked(stack):
    connectors = open_connectors(stack)
    for data in STRANGERS.values():
        for connector in connectors:
            knock(stack, connector, data).close()

    assert link_all(connectors) == EVERYBODY


def test_a_stranger_is_sent_away_and_named_in_the_log(stack, caplog):
    connector = open_connectors(stack, size=1)[0]

    with caplog.at_level(logging.WARNING, "phalanx"):
        stranger = knock(stack, connector, STRANGERS["HTTP"])
        answer = stranger.makefile("rb").read()

    assert b"this looks like HTTP" in answer
    assert f"refused a connection from 127.0.0.1:{stranger.getsockname()[1]}" in caplog.text
    assert "this looks like HTTP" in caplog.text


def test_a_rank_with_another_token_is_not_linked(stack, epoch, caplog):
    connectors = open_connectors(stack, credentials=[Credentials(TOKEN), Credentials(OTHER_TOKEN)])

    with pytest.raises(ConnectError, match=r"no link to rank 0: .*the token is wrong") as caught:
        connectors[1].dial(KEY, 1, 0, Deadline.after(600), epoch)

    connectors[0].close()  # when its thread is over, it has said so
    assert caught.value.peer == 0
    assert "the token is wrong" in caplog.text


def test_a_rank_of_another_epoch_is_not_linked(stack, epoch):
    connectors = open_connectors(stack, 2)
    connectors[0]._own = LinkHello(1, 0, WRONG_KEY)

    with pytest.raises(ConnectError, match="a process of another group answers there") as caught:
        connectors[1].dial(KEY, 1, 0, Deadline.after(2), epoch)

    assert caught.value.peer == 0


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


def test_who_dials_need_not_wait_until_the_peer_accepts(stack, epoch):
    connectors = open_connectors(stack, 2)

    now, later = (connectors[1].dial(key, 1, 0, Deadline.after(10), epoch) for key in (KEY, LATER_KEY))
    send_all(later, b"\x07")

    with (
        closing(now),
        closing(later),
        closing(connectors[0].accept(LATER_KEY, 0, 1, Deadline.after(10), epoch)) as link,
    ):
        assert hear(link, epoch) == 7


def test_a_call_that_came_before_its_epoch_began_here_is_answered_when_it_begins(stack, epoch):
    first, second = open_connectors(stack, 2)
    later = {rank: [each._acceptor.address] for rank, each in enumerate((first, second))}
    second.begin(later, LinkHello(2, 1, LATER_KEY), 5.0)
    with ThreadPoolExecutor() as pool:
        dialled = pool.submit(second.dial, KEY, 1, 0, Deadline.after(10), epoch)
        while not first._early:
            assert not dialled.done()
        first.begin(later, LinkHello(2, 0, LATER_KEY), 5.0)

        accepted = first.accept(KEY, 0, 1, Deadline.after(10), epoch)

        with closing(accepted), closing(dialled.result()) as link:
            assert (accepted.peer, link.peer) == (1, 0)


def test_an_epoch_that_begins_twice_drops_no_call(stack, epoch):
    first, second = open_connectors(stack, 2)
    dialled = second.dial(KEY, 1, 0, Deadline.after(10), epoch)
    first.begin({1: [second._acceptor.address]}, LinkHello(1, 0, EPOCH_KEY), 5.0)

    with closing(dialled), closing(first.accept(KEY, 0, 1, Deadline.after(1), epoch)) as accepted:
        send_all(dialled, b"\x07")

        assert hear(accepted, epoch) == 7


def test_calls_of_an_epoch_that_is_over_are_dropped(stack, epoch):
    first, second = open_connectors(stack, 2)
    stack.enter_context(closing(second.dial(KEY, 1, 0, Deadline.after(10), epoch)))
    first.begin({1: [second._acceptor.address]}, LinkHello(2, 0, LATER_KEY), 5.0)

    with pytest.raises(ConnectError, match="no link to rank 1"):
        first.accept(KEY, 0, 1, Deadline.after(0.1), epoch)


def test_two_threads_wait_for_calls_at_the_same_time(stack, epoch):
    connectors = open_connectors(stack)
    with ThreadPoolExecutor(2) as pool:
        accepting = [pool.submit(connectors[0].accept, KEY, 0, peer, Deadline.after(20), epoch) for peer in (1, 2)]

        links = [connectors[peer].dial(KEY, peer, 0, Deadline.after(20), epoch) for peer in (2, 1)]

        links += [each.result() for each in accepting]
    for link in links:
        link.close()


def test_a_hello_is_answered_with_proof_of_the_same_epoch(stack):
    calling = visit(stack, open_connectors(stack, size=1)[0], encode(LinkHello(epoch=1, rank=1, key=KEY)))

    answer = calling.makefile("rb").read(115)

    assert decode(answer[HEADER_BYTES:]) == LinkHello(1, 0, hashlib.sha256(EPOCH_KEY + KEY).digest()[:16])


def test_bytes_that_follow_a_hello_belong_to_the_link(stack, epoch):
    connector = open_connectors(stack, size=1)[0]
    visit(stack, connector, encode(LinkHello(epoch=1, rank=1, key=KEY)) + b"\x01and more")

    link = connector.accept(KEY, 0, 1, Deadline.after(10), epoch)
    heard = hear(link, epoch)

    link.close()
    assert heard == 1


def test_a_hello_may_come_in_pieces(stack, epoch):
    connector = open_connectors(stack, size=1)[0]
    hello = encode(LinkHello(epoch=1, rank=1, key=KEY))
    calling = visit(stack, connector, hello[:10])
    visit(stack, connector, encode(LinkHello(epoch=1, rank=2, key=KEY)))
    connector.accept(KEY, 0, 2, Deadline.after(10), epoch).close()  # by now the first part was read

    calling.sendall(hello[10:])

    connector.accept(KEY, 0, 1, Deadline.after(10), epoch).close()


@pytest.mark.parametrize("make_connector", [lambda stack: open_connectors(stack, 1)[0], lambda _: MemoryConnector()])
def test_a_peer_that_does_not_come_is_named(stack, epoch, make_connector):
    with pytest.raises(ConnectError, match=r"no link to rank 1 within 0.02 s") as caught:
        make_connector(stack).accept(KEY, 0, 1, Deadline.after(0.02), epoch)

    assert caught.value.peer == 1


@pytest.mark.parametrize("make_connector", [lambda stack: open_connectors(stack, 2)[1], lambda _: MemoryConnector()])
@pytest.mark.parametrize("how", ["dial", "accept"])
def test_a_revoked_epoch_ends_the_wait_for_a_peer(stack, epoch, make_connector, how):
    connector = make_connector(stack)
    epoch.revoke(PeerLost("rank 0 went away", peer=0))

    with pytest.raises(PeerLost, match="rank 0 went away"):
        getattr(connector, how)(KEY, 1, 0, Deadline.after(10), epoch)


def test_a_revoked_epoch_ends_a_dial_that_nobody_answers(stack, epoch):
    connectors = open_connectors(stack, 2)
    silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    connectors[1]._addresses[0][:] = [Address(host="127.0.0.1", port=silent.getsockname()[1])]
    with ThreadPoolExecutor(1) as pool:
        dialling = pool.submit(connectors[1].dial, KEY, 1, 0, Deadline.after(600), epoch)
        stack.enter_context(silent.accept()[0])

        epoch.revoke(PeerLost("rank 2 went away", peer=2))

        with pytest.raises(PeerLost, match="rank 2 went away"):
            dialling.result(timeout=2)  # not only when the attempt is over


@pytest.mark.parametrize("how", ["dial", "accept"])
def test_a_peer_that_has_left_is_not_waited_for(stack, epoch, how):
    connectors = open_connectors(stack, 2)
    connectors[0].close()
    epoch.leave(0)

    with pytest.raises(PeerLost, match="rank 0 left the group") as caught:
        getattr(connectors[1], how)(KEY, 1, 0, Deadline.after(600), epoch)

    assert caught.value.peer == 0


def test_links_in_memory_that_nobody_came_for_are_dropped(epoch):
    connector = MemoryConnector()
    link = connector.dial(KEY, 0, 1, Deadline.after(10), epoch)

    connector.close()
    connector.close()

    with closing(link), pytest.raises(PeerLost):
        link.receive_nowait(memoryview(bytearray(1)))


def test_a_connector_that_is_closed_twice_has_hung_up_on_everybody_and_ended_its_thread(stack, epoch):
    connector = open_connectors(stack, size=1)[0]
    waiting = [knock(stack, connector, STRANGERS[name]) for name in ("silence", "half an opening")]
    waiting += [visit(stack, connector, LOST[name]) for name in ("half a hello", "nothing")]
    visit(stack, connector, encode(LinkHello(epoch=1, rank=2, key=KEY)))
    connector.accept(KEY, 0, 2, Deadline.after(10), epoch).close()  # by now all were let in

    connector.close()
    connector.close()

    assert [connected.recv(1) for connected in waiting] == [b""] * 4
    assert not connector._thread.is_alive()


def test_a_lazy_link_is_made_when_it_is_first_needed_and_only_once():
    made = []

    def make(deadline):
        made.append(memory_pair(0, 1))
        return made[-1][0]

    link = LazyLink(1, make)
    assert not made

    link.make(Deadline.after(10))
    link.make(Deadline.after(10))
    link.send_nowait(memoryview(b"x"))
    link.close()

    (_, theirs) = made[0]
    with closing(theirs):
        assert theirs.receive_nowait(memoryview(bytearray(1))) == 1
    with pytest.raises(LinkClosed, match="the link to rank 1 was closed on this side"):
        LazyLink.make(link, Deadline.after(10))

import socket
import sys
from contextlib import closing

import pytest
from link_pairs import send_all, tcp_pair

from phalanx.errors import PeerLost
from phalanx.testing import FaultyLink, check_link
from phalanx.transport import Deadline, Epoch, memory_pair, wait_for_links


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_memory_links_keep_the_contract():
    check_link(lambda: memory_pair(0, 1))


def test_tcp_links_keep_the_contract_over_ipv4():
    check_link(lambda: tcp_pair("127.0.0.1"))


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback address")
def test_tcp_links_keep_the_contract_over_ipv6():
    check_link(lambda: tcp_pair("::1"))


def test_a_faulty_link_without_faults_keeps_the_contract():
    def make_pair():
        left, right = memory_pair(0, 1)
        return FaultyLink(left), FaultyLink(right)

    check_link(make_pair)


def test_a_wait_ends_as_soon_as_one_of_many_links_has_bytes():
    pairs = [memory_pair(0, peer) for peer in (1, 2, 3)]
    send_all(pairs[1][1], b"x")
    with closing(Epoch(1)) as epoch:
        is_ready = wait_for_links([], {near: 1 for near, _ in pairs}, Deadline.after(10), epoch)

    received = [near.receive_nowait(memoryview(bytearray(1))) for near, _ in pairs]
    for link in (end for pair in pairs for end in pair):
        link.close()
    assert is_ready
    assert received == [0, 1, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a wait go on until enough bytes are there")
def test_a_wait_over_tcp_goes_on_until_the_bytes_that_are_sure_to_come_are_there():
    near, far = tcp_pair("127.0.0.1")

    with closing(near), closing(far), closing(Epoch(1)) as epoch:
        send_all(far, bytes(10))
        assert wait_for_links([], {near: 10}, Deadline.after(10), epoch) == {near}
        assert not wait_for_links([], {near: 1000}, Deadline.after(0.05), epoch)
        send_all(far, bytes(990))
        assert wait_for_links([], {near: 1000}, Deadline.after(10), epoch) == {near}
        send_all(far, bytes(1 << 18))
        assert wait_for_links([], {near: 1 << 30}, Deadline.after(10), epoch) == {near}  # enough to work on


def test_a_wait_ends_when_the_peer_hangs_up_before_the_bytes_it_owes():
    near, far = tcp_pair("127.0.0.1")
    send_all(far, b"x")
    far.close()

    with closing(near), closing(Epoch(1)) as epoch:
        assert wait_for_links([], {near: 1000}, Deadline.after(10), epoch) == {near}


def test_one_link_can_be_waited_for_in_both_directions_at_once():
    near, far = memory_pair(0, 1)
    while near.send_nowait(memoryview(bytes(1 << 16))):
        pass
    send_all(far, b"x")

    with closing(near), closing(far), closing(Epoch(1)) as epoch:
        assert wait_for_links([near], {near: 1}, Deadline.after(10), epoch)
        assert not wait_for_links([near], {}, Deadline.after(0.01), epoch)


def test_both_ends_of_a_memory_link_know_their_peer():
    near, far = memory_pair(4, 7)

    with closing(near), closing(far):
        assert (near.peer, far.peer) == (7, 4)


def test_a_connection_that_breaks_names_its_peer():
    near, far = tcp_pair("127.0.0.1")
    far._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # a reset instead of an end
    far.close()

    with closing(near), closing(Epoch(1)) as epoch:
        wait_for_links([], {near: 1}, Deadline.after(10), epoch)
        with pytest.raises(PeerLost, match="the connection to rank 1 broke: Connection reset by peer") as caught:
            near.receive_nowait(memoryview(bytearray(1)))

    assert caught.value.peer == 1

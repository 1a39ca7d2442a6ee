import socket
import sys
import threading
from contextlib import ExitStack, closing

import pytest
from link_pairs import tcp_pair

from phalanx.errors import ConfigError, ConnectError, PeerLost
from phalanx.transport import Deadline, Epoch, Listener, connect, format_address, keep_alive, tcp
from phalanx.wire import Address


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def refusing(stack):
    """An address where nobody listens, kept from everybody else by a socket that is bound to it."""
    held = stack.enter_context(socket.socket())
    held.bind(("127.0.0.1", 0))
    return held, Address("127.0.0.1", held.getsockname()[1])


def silent(stack):
    """An address that answers nothing: its queue of callers is full."""
    listening = stack.enter_context(socket.socket())
    listening.bind(("127.0.0.1", 0))
    listening.listen(0)
    for _ in range(3):
        caller = stack.enter_context(socket.socket())
        caller.setblocking(False)
        caller.connect_ex(listening.getsockname())
    return Address("127.0.0.1", listening.getsockname()[1])


def reach(addresses, seconds=10):
    return connect(addresses, Deadline.after(seconds), whom="rank 4", peer=4)


def test_every_address_is_tried_until_one_answers(stack):
    listener = stack.enter_context(closing(Listener("127.0.0.1")))
    addresses = [refusing(stack)[1], refusing(stack)[1], listener.address]

    with reach(addresses) as connected:
        assert connected.getpeername()[1] == listener.address.port


def test_a_silent_address_does_not_use_up_the_time_of_the_others(stack, monkeypatch):
    monkeypatch.setattr(tcp, "_ATTEMPT_S", 0.05)
    listener = stack.enter_context(closing(Listener("127.0.0.1")))

    with reach([silent(stack), listener.address], seconds=600) as connected:
        assert connected.getpeername()[1] == listener.address.port


def test_one_deadline_holds_for_all_addresses_and_the_error_lists_each(stack, monkeypatch):
    monkeypatch.setattr(tcp, "_ATTEMPT_S", 0.05)  # so that there is time for the third
    addresses = [refusing(stack)[1], silent(stack), refusing(stack)[1]]

    with pytest.raises(ConnectError, match=r"rank 4 could not be reached within 1.2 s") as caught:
        reach(addresses, seconds=1.2)

    words = str(caught.value)
    assert words.count("Connection refused") == 2
    assert f"{format_address(addresses[1])}: timed out" in words
    assert all(words.count(format_address(address)) == 1 for address in addresses)
    assert caught.value.peer == 4


def test_without_an_address_the_error_says_so():
    with pytest.raises(ConnectError, match="no address"):
        reach([], seconds=0.01)


def test_a_peer_that_is_still_starting_is_tried_again(stack):
    held, address = refusing(stack)
    found = []
    calling = threading.Thread(target=lambda: found.append(reach([address])))

    calling.start()
    held.listen()
    calling.join()

    with found[0] as connected:
        assert connected.getpeername()[1] == address.port


def test_a_revoked_epoch_ends_the_attempts(stack):
    epoch = stack.enter_context(closing(Epoch(1)))
    epoch.revoke(PeerLost("rank 4 went away", peer=4))

    with pytest.raises(PeerLost, match="rank 4 went away"):
        connect([refusing(stack)[1]], Deadline.after(10), whom="rank 4", peer=4, epoch=epoch)


@pytest.mark.parametrize(
    ("level", "option"), [(socket.IPPROTO_TCP, socket.TCP_NODELAY), (socket.SOL_SOCKET, socket.SO_KEEPALIVE)]
)
def test_both_ends_send_small_frames_at_once_and_notice_machines_that_vanish(level, option):
    near, far = tcp_pair("127.0.0.1")

    with closing(near), closing(far):
        assert near._socket.getsockopt(level, option)
        assert far._socket.getsockopt(level, option)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the times are those of the system")
@pytest.mark.parametrize("patience_s", [2, 3, 5, 30, 3600])
def test_the_kernel_is_told_to_notice_within_the_patience(patience_s):
    near, far = tcp_pair("127.0.0.1")

    with closing(near), closing(far):
        keep_alive(near._socket, patience_s, is_always_read=True)
        idle_s, interval_s, probes, unacknowledged_ms = (
            near._socket.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        )

    assert idle_s + interval_s * probes <= patience_s
    assert unacknowledged_ms < 1000 * patience_s


def test_a_listener_without_callers_returns_none_at_once():
    with closing(Listener("127.0.0.1")) as listener:
        assert listener.accept_nowait() is None


def test_a_listener_says_where_a_call_came_from(stack):
    listener = stack.enter_context(closing(Listener("127.0.0.1")))
    calling = stack.enter_context(reach([listener.address]))

    accepted = None
    while accepted is None:
        accepted = listener.accept_nowait()
    stack.enter_context(accepted[0])

    assert accepted[1] == f"127.0.0.1:{calling.getsockname()[1]}"


def test_a_port_in_use_is_refused_with_advice(stack):
    listener = stack.enter_context(closing(Listener("127.0.0.1")))

    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{listener.address.port}: .* choose another"):
        Listener("127.0.0.1", listener.address.port)


def test_closing_a_listener_twice_is_harmless():
    listener = Listener("127.0.0.1")

    listener.close()
    listener.close()

    assert listener.fileno() < 0


def test_a_name_that_nobody_can_have_is_an_error_in_words():
    with pytest.raises(ConnectError, match=r"could not be reached within 0.05 s: 10.0.0..5: "):
        connect([Address("10.0.0..5", 7000)], Deadline.after(0.05), whom="it")

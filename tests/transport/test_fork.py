"""Forked children close what they inherited, and nothing that their parent uses; and no lock is held in them."""

import contextlib
import gc
import hashlib
import os
import selectors
import signal
import socket
import threading
import weakref
from contextlib import ExitStack, closing

import pytest

from forking import fork, wait
from phalanx.transport import Credentials, Deadline, Epoch, Listener, close_in_children, connect, memory_pair
from phalanx.transport.socket_handshake import SocketHandshake
from phalanx.wire import Purpose

TOKEN = b"a token that is long enough"


def paused_child():
    """The number of a child that does nothing until it is killed."""
    return fork(signal.pause)


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def test_the_end_of_a_connection_is_noticed_though_a_child_lives(stack):
    listener = stack.enter_context(closing(Listener("127.0.0.1")))
    ours = connect([listener.address], Deadline.after(10), whom="this test")
    theirs, _ = listener.accept_nowait()
    stack.enter_context(theirs)
    child = paused_child()

    ours.close()
    theirs.settimeout(10)

    assert theirs.recv(1) == b""
    os.kill(child, signal.SIGKILL)
    wait(child)


def test_the_parent_goes_on_with_what_its_child_has_closed(stack):
    left, right = (stack.enter_context(closing(link)) for link in memory_pair(0, 1))
    epoch = stack.enter_context(closing(Epoch(1)))
    selector = stack.enter_context(closing(close_in_children(selectors.DefaultSelector())))
    selector.register(right, selectors.EVENT_READ)

    assert wait(fork(lambda: None)) == 0

    assert left.send_nowait(memoryview(b"here")) == 4
    assert [key.fileobj for key, _ in selector.select(10)] == [right]
    epoch.check()


def test_a_child_has_none_of_the_descriptors():
    ours, theirs = map(close_in_children, socket.socketpair())

    def child():
        assert (ours.fileno(), theirs.fileno()) == (-1, -1)

    with ours, theirs:
        assert wait(fork(child)) == 0
        assert ours.fileno() >= 0


def test_nothing_is_kept_alive():
    ours, theirs = socket.socketpair()
    theirs.close()
    seen = weakref.ref(close_in_children(ours))
    ours.close()

    del ours
    gc.collect()

    assert seen() is None


@pytest.mark.long
@pytest.mark.slow
def test_a_child_can_use_openssl_though_it_was_forked_during_a_handshake(stack):
    """OpenSSL locks what it looks up. A child of another thread would inherit the lock, and wait for it for ever."""
    has_ended = threading.Event()

    def greet_all_the_time():
        while not has_ended.is_set():
            ours, theirs = socket.socketpair()
            with ours, theirs:
                sides = [
                    SocketHandshake(end, "here", Credentials(TOKEN), Purpose.LINK, server_side=end is ours)
                    for end in (ours, theirs)
                ]
                for side in 3 * sides:
                    with contextlib.suppress(BlockingIOError):
                        side.advance()

    def child():
        signal.alarm(20)  # ends it if it hangs
        hashlib.new("sha3_512")  # has to be looked up, since nobody has used it before

    thread = threading.Thread(target=greet_all_the_time)
    thread.start()
    stack.callback(thread.join)
    stack.callback(has_ended.set)

    assert all(wait(fork(child)) == 0 for _ in range(100))

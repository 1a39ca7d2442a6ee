"""Both ends of a link, for every transport."""

from phalanx.transport import Deadline, Listener, StreamLink, connect


def tcp_pair(host):
    listener = Listener(host)
    try:
        calling = connect([listener.address], Deadline.after(10), whom="rank 1", peer=1)
        called = None
        while called is None:  # the call is complete, so it is there or about to be
            called = listener.accept_nowait()
    finally:
        listener.close()
    return StreamLink(calling, 1), StreamLink(called[0], 0)


def send_all(link, data):
    """Send little enough that there is room for it."""
    assert link.send_nowait(memoryview(data)) == len(data)

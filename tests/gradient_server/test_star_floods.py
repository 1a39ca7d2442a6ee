"""A worker that sends without end and reads nothing: the others get their answers all the same."""

import itertools
import socket
import threading
from contextlib import ExitStack, suppress

import pytest
from star_play import exchange, full, join, serve, together

from phalanx.errors import CollectiveMismatch
from phalanx.gradient_server import Whole
from phalanx.testing.hostile import FloodingWorker, floods
from phalanx.transport import Deadline, connect
from phalanx.wire import entrenar

STEPS = 200
FLOODS = floods()
HEARTBEATS = entrenar.encode(entrenar.Heartbeat("anvil", 0)) * 1000


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def flooded(stack, pieces):
    """A server, a worker, and one that floods the server."""
    server = serve(stack, 2)
    [worker] = join(stack, server)
    stack.enter_context(FloodingWorker(server.address, pieces, Deadline.after(30)))
    server.wait_for_workers(10)
    return server, worker


def test_gradients_ahead_of_their_steps_wait_and_the_others_are_answered(stack):
    server, worker = flooded(stack, FLOODS["steps to come"]())

    served, taken = together(
        lambda: [server.exchange(step, Whole()) for step in range(STEPS)],
        lambda: [exchange(worker, step, gradients=full(1.0, 0))() for step in range(STEPS)],
    )

    assert [mean.step for mean in served] == [mean.step for mean in taken] == list(range(STEPS))
    assert all(len(each.stated) < 200 for each in server._star.workers)


def test_who_sends_a_gradient_again_halts_everybody_and_is_named(stack):
    server, worker = flooded(stack, FLOODS["the same gradient"]())

    together(lambda: server.exchange(0, Whole()), exchange(worker, gradients=full(1.0, 0)))
    errors = together(lambda: server.exchange(1, Whole()), exchange(worker, 1, gradients=full(1.0, 0)))

    for error in errors:
        with pytest.raises(CollectiveMismatch, match=r"worker 1 \(a flood, 127.* sent step 0, the whole gradient, but"):
            raise error
    server.close()  # ends, although the flood does not


def send_without_end(connected, pieces):
    with suppress(OSError):  # shut down
        for piece in pieces:
            connected.sendall(piece)


def test_a_flood_of_heartbeats_delays_nobody(stack):
    server = serve(stack, 2, dialect="entrenar")
    [worker] = join(stack, server)
    flood = stack.enter_context(connect([server.address], Deadline.after(10), whom="the server"))
    joining = entrenar.encode(entrenar.JoinRequest("anvil", 1, "cpu"))
    sent = [entrenar.encode(entrenar.GradientPayload(step, 1, 0, 0.0, 0, 1)) for step in range(3)]
    pieces = itertools.chain([joining, HEARTBEATS, *sent], itertools.repeat(HEARTBEATS))
    thread = threading.Thread(target=send_without_end, args=(flood, pieces))
    thread.start()
    stack.callback(thread.join)
    stack.callback(flood.shutdown, socket.SHUT_RDWR)
    server.wait_for_workers(10)

    served, taken = together(
        lambda: [server.exchange(step, Whole()) for step in range(3)],
        lambda: [exchange(worker, step, gradients=full(1.0, 0))() for step in range(3)],
    )

    assert [mean.step for mean in served] == [mean.step for mean in taken] == [0, 1, 2]

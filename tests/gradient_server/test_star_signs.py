"""Signs of life: a worker tells a server that is stopped from one that is slow, or waits for somebody else."""

import threading
from contextlib import ExitStack, closing

import numpy as np
import pytest
from star_play import exchange, full, star, together

from phalanx.gradient_server import Whole, collect
from phalanx.gradient_server.peer import Silence
from phalanx.transport import Epoch
from phalanx.wire import gradient

SIGN_BYTES = len(gradient.encode(gradient.ServerAlive()))


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def test_silence_counts_from_the_last_byte():
    silence = Silence()

    silence.look(100, 0.0)
    silence.look(100, 0.5)
    silence.look(100, 1.25)
    assert silence.seconds == 1.25

    silence.look(101, 1.5)
    assert silence.seconds == 0.0


def test_time_in_which_nobody_could_look_is_no_silence():
    silence = Silence()

    silence.look(100, 0.0)
    silence.look(100, 3600.0)

    assert silence.seconds == 1.0


@pytest.mark.slow
def test_a_server_that_waits_for_another_worker_is_not_taken_for_a_stopped_one(stack, monkeypatch):
    monkeypatch.setattr("phalanx.gradient_server.loop._SIGN_S", 0.02)
    monkeypatch.setattr("phalanx.gradient_server.client._LEAST_STALL_S", 0.0)
    monkeypatch.setattr("phalanx.gradient_server.client._LOOK_S", 0.02)
    server, workers = star(stack, 2)
    workers[0].watch(stack.enter_context(closing(Epoch(1))), 1.0)
    has_waited = threading.Event()
    look = Silence.look

    def note(silence, bytes_heard, now):
        look(silence, bytes_heard, now)
        if bytes_heard > 100 * SIGN_BYTES:  # two seconds of them
            has_waited.set()

    monkeypatch.setattr(Silence, "look", note)

    def send_late():
        assert has_waited.wait(30)
        return exchange(workers[1], gradients=full(2.0, 2**20))()

    means = together(lambda: server.exchange(0, Whole()), exchange(workers[0], gradients=full(1.0, 2**20)), send_late)

    assert [mean.gradients[0] for mean in means] == [1.5] * 3


def test_a_server_shows_life_while_it_adds_up(stack, monkeypatch):
    monkeypatch.setattr(collect, "_LANE_RUN", 2)
    server, [worker] = star(stack, 1, lanes=1)
    add_up = collect.add_up

    def add_up_for_long(*arguments):
        add_up(*arguments)
        server._star._next_sign = 0.0  # it is time for another

    monkeypatch.setattr(collect, "add_up", add_up_for_long)
    heard = worker._peer.bytes_heard
    mean = gradient.Mean(0, Whole(), 20, (20,), samples=1)
    answer = sum(len(part) for frame in gradient.frames(mean, memoryview(bytes(80))) for part in frame)

    total, _ = together(lambda: server.exchange(0, Whole()), exchange(worker, gradients=full(3.0, 20)))

    np.testing.assert_array_equal(total.gradients, full(3.0, 20))
    assert worker._peer.bytes_heard - heard - answer >= 9 * SIGN_BYTES

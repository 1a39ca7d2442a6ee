"""Failures on purpose, done to processes that only a test knows."""

import itertools
import subprocess
import threading
from contextlib import ExitStack

from phalanx.launch.chaos import Mishap, Strike
from phalanx.launch.storm import Storm, Weather

LIMIT_S = 60.0
STUBBORN = "trap '' TERM; echo ready; read line"  # like a worker that still has a step to finish


class Fleet:
    """Two workers on one host that stay, whatever they are asked."""

    coordinator = None

    def __init__(self, stack):
        self.workers = [stack.enter_context(_start()) for _ in range(2)]
        self.started = 0

    @property
    def hosts(self):
        return [[each.pid for each in self.workers]]

    def start_another(self, _):
        self.started += 1


def _start():
    worker = subprocess.Popen(["sh", "-c", STUBBORN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdout.readline() == b"ready\n"
    return worker


def test_a_worker_that_was_asked_to_leave_does_not_count_as_one_that_keeps_the_state():
    weather = Weather([Strike(2, 0.0, Mishap.JOIN, 0.0), Strike(6, 0.0, Mishap.KILL, 0.99)])
    looks, has_looked_often = itertools.count(), threading.Event()

    def count_steps():
        look = next(looks)
        if look == 60:
            has_looked_often.set()
        return look // 3

    with ExitStack() as stack:
        fleet = Fleet(stack)
        with Storm(weather, fleet, count_steps, away_s=1.0, is_shared=False):
            assert has_looked_often.wait(LIMIT_S)
        for worker in fleet.workers:
            worker.communicate(b"go\n", LIMIT_S)

    assert [each.mishap for each in weather.struck] == [Mishap.JOIN]
    assert [each.mishap for each in weather.strikes] == [Mishap.KILL]
    assert fleet.started == 1

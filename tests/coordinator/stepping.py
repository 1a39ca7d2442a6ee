"""Workers that take empty steps with the real client, for tests."""

import hashlib
import os
import threading
from contextlib import closing

from phalanx.coordinator import CoordinatorClient
from phalanx.errors import PhalanxError
from phalanx.transport import Credentials, Deadline
from phalanx.wire import Commit, Hello

LIMIT_S = 200.0


def digest_of(step):
    return hashlib.sha256(b"step %d" % step).digest()[:16]


class Stepper:
    """A worker in a thread: it takes ``steps`` steps, then leaves. ``applied`` has those that counted, in order."""

    def __init__(self, address, name, steps, *, lanes=8, credentials=None, digest=digest_of, on_step=lambda _: None):
        self.name = name
        self.applied = []
        self.epochs = []
        self.welcomes = []
        self.error = None
        self.client = None
        self._address = address
        self._steps = steps
        self._lanes = lanes
        self._credentials = credentials or Credentials()
        self._digest = digest
        self._on_step = on_step
        self.thread = threading.Thread(target=self._live, name=name)
        self.thread.start()

    def join(self):
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive(), f"{self.name} hangs"
        return self

    def _live(self):
        try:
            deadline = Deadline.after(LIMIT_S)
            with closing(CoordinatorClient([self._address], deadline, credentials=self._credentials)) as client:
                self.client = client
                self._take_steps(client, deadline)
        except PhalanxError as error:
            self.error = error
        finally:
            for epoch in self.epochs:
                epoch.close()

    def _take_steps(self, client, deadline):
        hello = Hello("here", (), os.getpid(), None, None, "", name=self.name, lanes=self._lanes)
        word = client.join(hello, deadline)
        step = 0
        while True:
            match word:
                case Commit():
                    assert word == Commit(step, self._digest(step))
                    self.applied.append(step)
                    step += 1
                    self._on_step(step)
                case (welcome, epoch):
                    self.epochs.append(epoch)
                    self.welcomes.append(welcome)
                    if step < welcome.step:
                        step = welcome.step
                        client.hold(epoch, step)
            if step == self._steps:
                break
            client.done(self.epochs[-1], 1.0, self._digest(step))
            word = client.wait_for_word(deadline)
        client.leave()

"""Workers of an elastic run in processes of their own, which tests kill, stop and replace."""

import ast
import logging
import os
import random
import select
import signal
import socket
import traceback

import torch
from engine_play import LANES, Toy, batches_of, digest_of, make_engine
from killing_points import POINTS

from phalanx.coordinator import Coordinator, Journal, Terms
from phalanx.errors import ConnectError
from phalanx.group import ElasticRun, Join, Over
from phalanx.transport import format_address, parse_address
from phalanx.wire import Address

TIMEOUT_S = 120.0
_EVALUATED = 1000


class Workers:
    """Workers by number, and what they say: tuples of number, what, step and value.

    All processes are forked before the test starts a thread, and wait until they are started. Whoever is left at the
    end of the block is killed. Each worker calls ``behind(engine, run, report)`` behind every step, and says what
    ``forsaken(engine, run)`` returns when its coordinator stays away.
    """

    def __init__(
        self,
        count,
        *,
        steps,
        over="arena",
        stall_s=None,
        zero=False,
        paranoid=False,
        behind=lambda *_: None,
        forsaken=None,
    ):
        torch.set_num_threads(1)
        self._reader, self._writer = os.pipe()
        self._unread = b""
        self._waiting = []
        self.pids = {}
        self._zero = zero
        self._paranoid = paranoid
        self._forsaken = forsaken
        join = {"over": Over.TCP if over == "tcp" else Over.AUTO, "stall_s": stall_s}
        for number in range(count):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                ours.close()
                try:
                    host = f"host {number % 2}" if over == "hosts" else None
                    self._live(number, theirs, {**join, "host": host}, steps, behind)
                finally:
                    os._exit(0)
            theirs.close()
            self._waiting.append((number, pid, ours))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for number, pid, begin in self._waiting:
            self.pids[number] = pid
            begin.close()
        for number in list(self.pids):
            self.kill(number)
        os.close(self._reader)
        os.close(self._writer)

    def start(self, address, hidden=40, dies_at="nowhere", zero=None):
        """Let the next worker join, and return its number. It kills itself at the point ``dies_at``."""
        number, pid, begin = self._waiting.pop(0)
        zero = self._zero if zero is None else zero
        begin.sendall(f"{format_address(address)} {hidden} {dies_at} {int(zero)}".encode())
        begin.close()
        self.pids[number] = pid
        return number

    def kill(self, number):
        pid = self.pids.pop(number)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def stop(self, number):
        os.kill(self.pids[number], signal.SIGSTOP)

    def resume(self, number):
        os.kill(self.pids[number], signal.SIGCONT)

    def listen(self):
        """Yield what workers say; fail if they say nothing for too long."""
        while True:
            while b"\n" not in self._unread:
                assert select.select([self._reader], [], [], TIMEOUT_S)[0], "no worker says anything any more"
                self._unread += os.read(self._reader, 1 << 16)
            line, _, self._unread = self._unread.partition(b"\n")
            yield ast.literal_eval(line.decode())

    def catch_up(self, heard):
        """Add what workers have said so far to ``heard``."""
        while b"\n" in self._unread or select.select([self._reader], [], [], 0)[0]:
            heard.append(next(self.listen()))

    def wait_for_death(self, number):
        """Return when a worker that kills itself is dead."""
        _, status = os.waitpid(self.pids.pop(number), 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "it came to its end"

    def wait_for_a_death(self):
        """Return when one of the workers has killed itself."""
        pid, status = os.waitpid(-1, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "it came to its end"
        del self.pids[next(number for number, each in self.pids.items() if each == pid)]

    def listen_to_the_end(self, heard):
        """Add what workers say to ``heard`` until all that are left have ended."""
        ended = {number for number, what, _, _ in heard if what in ("end", "error")}
        for said in self.listen() if not self.pids.keys() <= ended else ():
            heard.append(said)
            if said[1] in ("end", "error"):
                ended.add(said[0])
            if self.pids.keys() <= ended:
                return

    def _live(self, number, begin, join, steps, behind):
        words = begin.recv(1024).decode().split()
        if not words:
            return
        begin.close()

        def say(what, step, value):
            os.write(self._writer, f"{(number, what, step, value)!r}\n".encode())  # short: written whole, or not at all

        def batches(step, lane):
            say("lane", step, lane)
            return batches_of(step)(lane)

        logging.basicConfig(level=logging.INFO, format=f"%(relativeCreated)d worker {number}: %(message)s", force=True)
        try:
            joined = Join(coordinator=(parse_address(words[0]),), lanes=LANES, timeout_s=TIMEOUT_S, **join)
            with ElasticRun(joined) as run:
                engine = make_engine(
                    run, model=lambda: Toy(int(words[1])), zero=words[3] == "1", paranoid=self._paranoid
                )
                if words[2] in POINTS:
                    POINTS[words[2]](engine)
                for report in self._train(engine, run, batches, steps, say):
                    say("report", report.step, (report.loss.hex(), report.norm.hex(), report.digest.hex()))
                    if report.step % 3 == 2:
                        say("evaluation", report.step, engine.evaluate(batches_of(_EVALUATED)).hex())
                    if report.step % 5 == 3:
                        say("state", report.step, engine.compare().hex())
                    say("held", report.step, sorted(engine._replica.held))
                    engine.extra["taken"] = engine.extra.get("taken", 0) + 1
                    behind(engine, run, report)
                    say("extra", report.step, engine.extra["taken"])
                    say("epoch", report.step, (run.group.epoch, run.group.rank, run.group.size))
                say("end", engine.step_number, digest_of(engine))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            traceback.print_exc()
            say("error", 0, f"{type(error).__name__}: {error}"[:2000])

    def _train(self, engine, run, batches, steps, say):
        try:
            yield from engine.train(batches, steps)
        except ConnectError:
            if self._forsaken is None:
                raise
            say("forsaken", engine.step_number, self._forsaken(engine, run))


class KillableCoordinator:
    """A coordinator with a journal, in a process of its own. It comes back at the same address."""

    def __init__(self, terms, journal):
        self._terms, self._journal = terms, journal
        self.address = Address("127.0.0.1", 0)
        self._start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._kill()

    @property
    def pid(self):
        return self._pid

    def kill_and_start_again(self):
        self._kill()
        self._start()

    def _kill(self):
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _start(self):
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                where, journal = self.address, Journal(self._journal)
                coordinator = Coordinator(where.host, where.port, terms=self._terms, journal=journal)
                theirs.sendall(format_address(coordinator.address).encode())
                signal.pause()
            finally:
                os._exit(1)
        theirs.close()
        ours.settimeout(TIMEOUT_S)
        self.address = parse_address(ours.recv(1024).decode())
        ours.close()


def story_of(heard):
    """What workers found in each step, which must be the same for all, and the digests that they ended with."""
    found = {}
    for _, what, step, value in heard:
        if what in ("report", "evaluation", "state", "extra", "end"):
            assert found.setdefault((what, step), value) == value, (what, step)
    errors = [said for said in heard if said[1] == "error"]
    assert not errors, errors
    return found


def last_report(heard):
    """The last step that workers have reported. They may have committed one more."""
    return max((step for _, what, step, _ in heard if what == "report"), default=0)


def calm(steps):
    """The story of a run that one worker takes undisturbed."""
    heard = []
    with Workers(1, steps=steps) as workers, Coordinator(terms=Terms(minimum=1, maximum=1)) as coordinator:
        workers.start(coordinator.address)
        workers.listen_to_the_end(heard)
    return story_of(heard)


def storm(seed, *, over, size=4, kills=8, steps=30, zero=False, behind=lambda *_: None):
    """What workers say in a run in which some of them are killed at random moments, each replaced by a new one.

    There are always two that hold the state: nobody could go on if all of these were killed at once. With ``zero``, the
    next one is killed only when a step has begun behind the last death, and so all state has two holders again.
    """
    chance = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
    heard = []
    with (
        Workers(size + kills, steps=steps, over=over, zero=zero, behind=behind) as workers,
        Coordinator(terms=Terms(minimum=2, maximum=size)) as coordinator,
    ):
        for _ in range(size):
            workers.start(coordinator.address)
        known, killed_in = {}, 0  # the epoch in which each worker has finished a step
        settled_at = 0
        for said in workers.listen():
            heard.append(said)
            number, what, step, value = said
            if what == "epoch":
                known[number] = value[0]
            if kills == 0 or what in ("end", "error"):
                break
            holders = [each for each in workers.pids if known.get(each, 0) > killed_in]
            if len(holders) > 1 and step >= settled_at and chance.random() < 0.1:
                killed_in = max(known.values())
                workers.kill(chance.choice(list(workers.pids)))
                workers.start(coordinator.address)
                kills -= 1
                if zero:
                    workers.catch_up(heard)
                    settled_at = last_report(heard) + 2
        workers.listen_to_the_end(heard)
    return heard

"""A coordinator whose workers are played, and a worker whose coordinator is: events go in, what follows comes out."""

from phalanx.coordinator.chronicle import Chronicle
from phalanx.coordinator.decision import Drop, Record, Say
from phalanx.coordinator.membership import Membership
from phalanx.coordinator.participant import Participant
from phalanx.coordinator.record import Past
from phalanx.coordinator.terms import Terms
from phalanx.wire import Address, Done, Heard, Hello, Waiting, Welcome, encode

LANES = 8
PATIENCE_S, STALL_S = 5.0, 30.0


def plain_hello(rank=None, size=None, job="", pid=1):
    """What a worker of a group that takes no steps says."""
    return Hello(host="anvil", addresses=(Address("10.0.0.7", 4000),), pid=pid, rank=rank, size=size, job=job)


def run_hello(name, *, rank=None, size=None, step=0, pending=None, lanes=LANES, can_keep=False):
    """What a worker of a run says."""
    return Hello(
        host="anvil",
        addresses=(),
        pid=7,
        rank=rank,
        size=size,
        job="",
        name=name,
        device="cpu",
        threads=2,
        lanes=lanes,
        step=step,
        pending=pending,
        can_keep=can_keep,
    )


def waiting(*ranks, words="barrier", sequence=7, waited_s=0.0, cpu_s=0.0):
    return Waiting(
        epoch=1,
        ranks=ranks,
        waited_s=(waited_s,) * len(ranks),
        group="world",
        sequence=sequence,
        words=words,
        cpu_s=cpu_s,
    )


def elsewhere(cpu_s=0.0):
    """What a worker says that waits for nobody."""
    return Waiting(epoch=1, ranks=(), waited_s=(), group="", sequence=0, words="", cpu_s=cpu_s)


class Play:
    """A ``Membership``, the time, and what a journal would have of it; decisions are carried out as a server does."""

    def __init__(self, least=None, most=None, *, first=None, job="", past=None, now=0.0):
        terms = Terms(minimum=least, maximum=most or least, first=first, job=job)
        self.now = now
        self.past = past or Past()
        self.membership = Membership(terms, bytes(32), past, now)

    def say(self, connection, message):
        return self._carry_out(self.membership.hear(connection, message, self.now))

    def garble(self, connection, why):
        return self._carry_out(self.membership.hear_garbage(connection, why, self.now))

    def hang_up(self, connection):
        return self._carry_out(self.membership.hang_up(connection, self.now))

    def wait(self, seconds):
        """Let time pass, from one tick to the next."""
        until = self.now + seconds
        decisions = []
        while (due := self.membership.next_tick) is not None and due <= until:
            self.now = max(self.now, due)
            decisions += self._carry_out(self.membership.tick(self.now))
        self.now = until
        return decisions

    def finish_step(self, *connections):
        """The workers behind these connections are done with the present step, and did the same."""
        done = Done(self.membership.epoch, self.membership.step, 0.5, b"same")
        return [decision for connection in connections for decision in self.say(connection, done)]

    def _carry_out(self, decisions):
        carried = []
        for decision in decisions:
            carried.append(decision)
            match decision:
                case Say(message=message):
                    encode(message)  # what nobody could receive must not be said
                case Record(line=line):
                    self.past = self.past.after(line)
                case Drop(connection=connection):
                    carried += self._carry_out(self.membership.hang_up(connection, self.now))
        return carried


class Chronicled(Play):
    """A play of which the events are noted as the server does it."""

    def __init__(self, *arguments, **others):
        super().__init__(*arguments, **others)
        self.chronicle = Chronicle(self.past, self.now)
        self.events = self.chronicle.start()

    def say(self, connection, message):
        self.events += self.chronicle.hear(connection, message)
        return super().say(connection, message)

    def hang_up(self, connection):
        self.events += self.chronicle.hang_up(connection, "it hung up")
        return super().hang_up(connection)

    def take(self):
        """The events since the last time."""
        events, self.events = self.events, []
        return events

    def end(self):
        membership = self.membership
        return self.chronicle.end(membership.step, membership.ended, has_halted=membership.has_halted)

    def _carry_out(self, decisions):
        for decision in decisions:
            match decision:
                case Say(to=connections, message=message):
                    self.events += self.chronicle.tell(connections, message, self.now)
                case Drop(connection=connection, why=why):
                    self.events += self.chronicle.hang_up(connection, why)
        return super()._carry_out(decisions)


def plain_group(size=3):
    """A complete group that takes no steps, where rank r is behind connection 10 + r."""
    play = Play(size)
    for rank in range(size):
        play.say(10 + rank, plain_hello(rank))
    return play


def run_of(size, least=None, most=None):
    """A run in its first epoch, where rank r, of the name wr, is behind connection 10 + r."""
    names = frozenset(f"w{rank}" for rank in range(size))  # who is awaited is in the first epoch, however few would do
    play = Play(least or size, most or size, past=Past(lanes=LANES, names=names))
    for rank in range(size):
        play.say(10 + rank, run_hello(f"w{rank}"))
    return play


def told(decisions, kind):
    """Who is told messages of this kind: the message by connection."""
    return {
        connection: decision.message
        for decision in decisions
        if isinstance(decision, Say) and isinstance(decision.message, kind)
        for connection in decision.to
    }


def only(decisions, kind):
    """The one message of this kind that everybody who is told one is told."""
    (message,) = set(told(decisions, kind).values())
    return message


def recorded(decisions):
    """The lines that are written down."""
    return [decision.line for decision in decisions if isinstance(decision, Record)]


def welcome(epoch=1, step=0):
    return Welcome(epoch=epoch, rank=0, key=bytes(16), members=(), step=step)


def member(hello=None, now=0.0, **others):
    """A worker that is in epoch 1."""
    worker = Participant(hello or run_hello("w0"), **others)
    worker.reached(now)
    worker.hear(Heard(PATIENCE_S, STALL_S), now)
    worker.hear(welcome(), now)
    return worker


def plain_member(**others):
    return member(plain_hello(), **others)


def ending(moves):
    """The type and the words of the error that moves end with."""
    error = moves[-1].error
    return type(error), str(error)

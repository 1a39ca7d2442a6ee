"""Real training beside members and strangers that misbehave: it ends with the weights of a calm run."""

import copy
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress

import pytest
import torch

from phalanx.coordinator import Coordinator, CoordinatorClient, Terms
from phalanx.errors import PhalanxError
from phalanx.group import Join, Over, alone, connect
from phalanx.group.context import GroupContext
from phalanx.group.group import make_group
from phalanx.parallel import Engine, digest_weights
from phalanx.testing.hostile import HostileMember, hostile_frames, hostile_members
from phalanx.transport import Credentials, Deadline, MemoryConnector, call
from phalanx.wire import Hello, Purpose, encode

LANES, STEPS, COMES_AFTER, LIMIT_S = 8, 8, 2, 200.0
MEMBERS = hostile_members()
SILENT = {"silence", "half a frame"}  # given up after the stall time
QUICK = {"done with a step to come", "blaming itself", "a frame: a header: random bytes"}
MODEL = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1))


def make_hello():
    name = f"{os.getpid()}:{os.urandom(8).hex()}"  # also its host, so it shares no memory
    return Hello(name, (), os.getpid(), None, None, "", name=name, lanes=LANES)


def batches_of(step):
    return lambda lane: [torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * step + lane))]


class Training:
    """The model, and the state of its optimizer after the last step that counted."""

    def __init__(self):
        self.model = copy.deepcopy(MODEL)
        self.step = 0
        self._state = None

    def go_on(self, group, on_step=lambda _: None):
        """Take the steps that are left."""
        with closing(self._make_engine(group)) as engine:
            while self.step < STEPS:
                engine.step(batches_of(self.step))
                self._state, self.step = copy.deepcopy(engine.optimizer.state_dict()), engine.step_number
                on_step(self.step)

    def digest(self):
        return digest_weights(list(self.model.state_dict().items()))

    def _make_engine(self, group):
        engine = Engine(
            self.model,
            lambda model, batch: model(batch).square().mean(),
            lambda leaves: torch.optim.AdamW([leaf.block for leaf in leaves], lr=0.01),
            group,
            clip=0.5,
        )
        if self._state:
            engine.optimizer.load_state_dict(self._state)
            engine.step_number = self.step
        return engine


class Registry:
    """The coordinator, as a group uses it; it remembers the epoch that has begun meanwhile."""

    def __init__(self, client):
        self.begun = None
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client, name)

    def wait_for_word(self, deadline):
        word = self._client.wait_for_word(deadline)
        if isinstance(word, tuple):
            self.begun = word
        return word

    def wait_for_epoch(self, deadline):
        while self.begun is None:
            self.wait_for_word(deadline)
        begun, self.begun = self.begun, None
        return begun


def train(address, connector, on_step=lambda _: None):
    """Take all steps as a member of a run, in a new group for every epoch; return the digest at the end."""
    training, deadline = Training(), Deadline.after(LIMIT_S)
    with closing(CoordinatorClient([address], deadline)) as client:
        registry = Registry(client)
        registry.begun = client.join(make_hello(), deadline)
        while training.step < STEPS:
            welcome, epoch = registry.wait_for_epoch(deadline)
            context = GroupContext(connector, epoch, registry, [member.host for member in welcome.members])
            ranks = [member.rank for member in welcome.members]
            with ExitStack() as stack:
                stack.enter_context(closing(epoch))
                stack.enter_context(suppress(PhalanxError))  # the epoch has ended, and another one begins
                group = make_group(context, ranks, welcome.rank, welcome.key, deadline, LIMIT_S, lanes=LANES)
                stack.enter_context(closing(group))
                training.go_on(group, on_step)
        client.leave()
    return training.digest()


@pytest.fixture(scope="module")
def calm():
    training = Training()
    with alone(lanes=LANES) as group:
        training.go_on(group)
    return training.digest()


@pytest.mark.parametrize(
    "what", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in MEMBERS]
)
def test_training_beside_a_member_that_misbehaves_ends_with_the_weights_of_a_calm_run(what, calm):
    terms = Terms(minimum=2, maximum=3, stall_s=3.0 if what in SILENT else 100.0)
    with ExitStack() as stack:
        coordinator = stack.enter_context(Coordinator(terms=terms))
        connector = stack.enter_context(closing(MemoryConnector()))
        pool = stack.enter_context(ThreadPoolExecutor(3))
        words = []

        def come(step):
            if step == COMES_AFTER:
                hostile = HostileMember(coordinator.address, MEMBERS[what], Deadline.after(LIMIT_S), lanes=LANES)
                words.append(pool.submit(hostile.misbehave))

        workers = [pool.submit(train, coordinator.address, connector, on_step) for on_step in (come, lambda _: None)]

        assert [worker.result(LIMIT_S) for worker in workers] == [calm, calm]
        assert words[0].result(LIMIT_S) or what.startswith("a flood"), "it was not told why it was sent away"
        assert not coordinator.has_halted


def test_training_beside_strangers_that_know_the_token_ends_with_the_weights_of_a_calm_run(calm):
    """They come to the coordinator, with and without a hello that it cannot grant, and to the port of a rank."""
    deadline = Deadline.after(LIMIT_S)
    with ExitStack() as stack:
        coordinator = stack.enter_context(Coordinator(terms=Terms.exactly(2)))
        pool = stack.enter_context(ThreadPoolExecutor(2))

        def disturb(addresses, purpose, opening=b""):
            for data in hostile_frames().values():
                connected = call(addresses, deadline, Credentials(), purpose, whom="somebody")
                stack.enter_context(connected)
                connected.sendall(opening + data)

        def work(_):
            def disturb_all(step):
                if (step, group.rank) == (COMES_AFTER, 0):
                    disturb([coordinator.address], Purpose.COORDINATOR)
                    disturb([coordinator.address], Purpose.COORDINATOR, encode(make_hello()))
                    disturb(group._context.connector._addresses[1], Purpose.LINK)

            training = Training()
            with connect(Join(coordinator=(coordinator.address,), over=Over.TCP, lanes=LANES)) as group:
                training.go_on(group, disturb_all)
                return training.digest(), group.epoch

        assert list(pool.map(work, range(2))) == [(calm, 1)] * 2

"""Through the gradient server a run gets the same bits as in a group, for any number of workers."""

import contextlib
import copy
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

from phalanx.coordinator import Coordinator, Terms
from phalanx.errors import DeadlineExceeded, EpochChanged, NonFiniteGradient, PhalanxError, WeightsDiverged
from phalanx.gradient_server import Component, GradientServer, ModelBlock, WorkerClient
from phalanx.group import Join, alone, enlist
from phalanx.parallel import Engine, StarExchange, digest_weights
from phalanx.transport import Credentials, Deadline, call, parse_address
from phalanx.wire import Hello, Purpose, encode

LANES = 8
BUCKETS = [["2.weight", "2.bias"], ["1.weight", "1.bias"], ["0.weight", "0.bias"]]
PARTS = [ModelBlock(0, 1), Component.FINAL_NORM, Component.EMBEDDING]
MODEL = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1))


def square(model, batch):
    return model(batch).square().mean()


def batches_of(step):
    return lambda lane: [torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * step + lane))]


def make_engine(exchange):
    model = copy.deepcopy(MODEL)
    make_optimizer = lambda leaves: torch.optim.AdamW([leaf.block for leaf in leaves], lr=0.01)  # noqa: E731
    return Engine(model, square, make_optimizer, exchange, clip=0.5, buckets=BUCKETS)


def take_steps(engine, steps=10):
    reports = [engine.step(batches_of(step)) for step in range(steps)]
    words = [(each.loss.hex(), each.norm.hex()) for each in reports], engine.evaluate(batches_of(99)).hex()
    return *words, digest_weights(list(engine.model.state_dict().items()))


def run(workers, work):
    """What ``work(engine, rank)`` returned or raised on every worker of a star."""
    results = {}

    def live(coordinator, server):
        with WorkerClient(server.address, lanes=LANES) as client:
            join = Join(coordinator=(coordinator.address,), rank=client.worker, size=workers, lanes=LANES)
            with enlist(join) as member, contextlib.closing(make_engine(StarExchange(member, client, PARTS))) as engine:
                try:
                    results[member.rank] = work(engine, member.rank)
                except PhalanxError as error:
                    results[member.rank] = error

    with (
        Coordinator(terms=Terms.exactly(workers)) as coordinator,
        GradientServer(workers=workers, lanes=LANES) as server,
    ):
        threads = [threading.Thread(target=live, args=(coordinator, server)) for _ in range(workers)]
        for thread in threads:
            thread.start()
        server.wait_for_workers(30)
        with contextlib.suppress(PhalanxError):  # until they leave
            while True:
                server.exchange_next()
        for thread in threads:
            thread.join()
    return [results[rank] for rank in range(workers)]


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_the_star_gives_the_bits_of_a_group(workers):
    with alone(lanes=LANES) as group:
        expected = take_steps(make_engine(group))

    assert run(workers, lambda engine, _: take_steps(engine)) == [expected] * workers


def test_a_value_that_is_not_finite_is_traced_through_the_star():
    def work(engine, rank):
        def batches(lane):
            return [batches_of(0)(lane)[0] * (float("nan") if lane == 4 else 1.0)]

        return engine.step(batches, lambda lane: (lane,))

    errors = run(3, work)

    assert [type(error) for error in errors] == [NonFiniteGradient] * 3
    assert {(error.rank, error.lane, error.samples, str(error)) for error in errors} == {
        (1, 4, (4,), str(errors[0])),
    }


def test_other_weights_are_found_through_the_star():
    def work(engine, rank):
        if rank == 2:
            engine.model[0].weight.data[1, 1] += 1
        return [engine.step(batches_of(step)) for step in range(2)]

    errors = run(3, work)

    assert [(type(error), error.rank, error.parameter) for error in errors] == [(WeightsDiverged, 2, "0.weight")] * 3


@pytest.mark.slow
def test_a_stopped_worker_is_found_through_the_star():
    terms = Terms(minimum=2, maximum=2, patience_s=0.5, stall_s=0.5)
    hello = Hello("elsewhere", (), 4711, 1, 2, "", name="anvil:4711:0", lanes=LANES)
    with contextlib.ExitStack() as stack:
        coordinator = stack.enter_context(Coordinator(terms=terms))
        server = stack.enter_context(GradientServer(workers=2, lanes=LANES))
        client = stack.enter_context(WorkerClient(server.address, lanes=LANES))
        stack.enter_context(WorkerClient(server.address, lanes=LANES))  # like the next, of a worker that is stopped
        stopped = call([coordinator.address], Deadline.after(10), Credentials(), Purpose.COORDINATOR, whom="it")
        stack.enter_context(stopped).sendall(encode(hello))
        member = stack.enter_context(enlist(Join(coordinator=(coordinator.address,), rank=0, size=2, lanes=LANES)))
        engine = stack.enter_context(contextlib.closing(make_engine(StarExchange(member, client, PARTS))))

        with pytest.raises(EpochChanged, match=r"rank 0 has waited .* for rank 1, .*; rank 1 is process 4711 on anvil"):
            engine.step(batches_of(0))


SERVER = """
from phalanx.gradient_server import GradientServer
from phalanx.transport import format_address
with GradientServer(workers=1, lanes=8) as server:
    print(format_address(server.address), flush=True)
    server.wait_for_workers(30)
    while True:
        server.exchange_next()
"""


@pytest.mark.slow
def test_a_stopped_gradient_server_is_found_after_the_stall_time():
    terms = Terms(minimum=1, maximum=1, stall_s=0.5)
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        )
        stack.callback(process.kill)
        address = process.stdout.readline().strip()
        coordinator = stack.enter_context(Coordinator(terms=terms))
        client = stack.enter_context(WorkerClient(parse_address(address), lanes=LANES))
        member = stack.enter_context(enlist(Join(coordinator=(coordinator.address,), size=1, lanes=LANES)))
        engine = stack.enter_context(contextlib.closing(make_engine(StarExchange(member, client, PARTS))))
        engine.step(batches_of(0))
        os.kill(process.pid, signal.SIGSTOP)

        words = f"the gradient server at {address} has shown no sign of life for .* --stall or PHALANX_STALL"
        with pytest.raises(DeadlineExceeded, match=words):
            engine.step(batches_of(1))

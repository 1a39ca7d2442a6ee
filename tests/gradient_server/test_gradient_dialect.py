"""Peers of entrenar written from its documentation: plain sockets and ``struct``, nothing of our codec."""

import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import numpy as np
import pytest

from phalanx.errors import BadFrame, CollectiveMismatch, Halted, JoinRefused, LinkClosed, NonFiniteGradient, PeerLost
from phalanx.gradient_server import Component, GradientServer, ModelBlock, Whole, WorkerClient
from phalanx.gradient_server.entrenar import split_samples
from phalanx.wire import Address

F32 = np.float32
GOLDEN_BLOCK = (
    "0000003508070000000000000001000000050000001800000002000000020000000100000003000000000000000000803f0000004000004040"
)
SHUTDOWN = bytes.fromhex("0000000107")


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def frame(payload):
    return struct.pack(">I", len(payload)) + payload


def text(words):
    return struct.pack("<I", len(words.encode())) + words.encode()


def vector(values):
    return struct.pack("<Q", len(values)) + np.asarray(values, "<f4").tobytes()


def sizes(values):
    return struct.pack(f"<I{len(values)}I", len(values), *values)


def whole(step, worker, values, loss, correct, total):
    return frame(struct.pack("<BQI", 4, step, worker) + vector(values) + struct.pack("<fQQ", loss, correct, total))


def block(step, worker, index, of, values, parts):
    return frame(struct.pack("<BQIII", 8, step, worker, index, of) + sizes(parts) + vector(values))


def component(step, worker, number, values):
    return frame(struct.pack("<BQIB", 10, step, worker, number) + vector(values))


class RawWorker:
    """A worker of entrenar."""

    def __init__(self, address, name="node-0"):
        self.socket = socket.create_connection((address.host, address.port), timeout=10)
        self.socket.sendall(frame(b"\x01" + text(name) + struct.pack("<I", 1) + text("cuda")))

    def join(self):
        tag, self.number, self.workers = struct.unpack("<BII", self.payload())
        assert tag == 2
        return self

    def payload(self):
        return read_payload(self.socket)

    def close(self):
        self.socket.close()


def read_payload(connected):
    return read_exactly(connected, struct.unpack(">I", read_exactly(connected, 4))[0])


def read_exactly(connected, count):
    data = b""
    while len(data) < count:
        piece = connected.recv(count - len(data))
        assert piece, "they hung up"
        data += piece
    return data


def together(*calls):
    """What each call returned, or raised."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
    return [future.exception() or future.result() for future in futures]


def serve(stack, workers, **options):
    options = {"dialect": "entrenar", "timeout_s": 10.0, **options}
    return stack.enter_context(GradientServer(workers=workers, **options))


def star(stack, count, **options):
    server = serve(stack, count, **options)
    workers = [stack.enter_context(closing(RawWorker(server.address, f"node-{n}"))).join() for n in range(count)]
    server.wait_for_workers(10)
    return server, workers


def test_the_first_conversation_of_entrenar_byte_for_byte(stack):
    server, workers = star(stack, 2)
    server.total_samples = 7
    assert [(each.number, each.workers) for each in workers] == [(0, 2), (1, 2)]

    for step in range(2):
        server.send_shards(step)
        shards = [each.payload() for each in workers]
        assert shards == [struct.pack("<BQQQ", 3, step, 0, 3), struct.pack("<BQQQ", 3, step, 3, 7)]
        workers[1].socket.sendall(whole(step, 1, [3.0, -0.0, 5.0], 0.25, 1, 3))
        workers[0].socket.sendall(whole(step, 0, [1.0, -0.0, 0.1], 0.5, 2, 3))
        mean = server.exchange(step, Whole())

        values = np.array([2.0, 0.0, (F32(0.1) + F32(5.0)) / F32(2)], F32)
        loss = (F32(0.5) * F32(3) + F32(0.25) * F32(3)) / F32(6)
        expected = struct.pack("<BQ", 5, step) + vector(values) + struct.pack("<f", loss)
        assert [each.payload() for each in workers] == [expected, expected]
        assert (mean.loss, mean.correct, mean.samples) == (loss, 3, 6)
    server.shutdown()

    for each in workers:
        assert each.socket.recv(100) == SHUTDOWN


@pytest.mark.parametrize(
    ("what", "step", "other", "sent", "answer"),
    [
        (
            ModelBlock(5, of=24),
            7,
            block(7, 0, 5, 24, [2.0, 3.0, 4.0], [2, 1]),
            GOLDEN_BLOCK,
            "0000002d0907000000000000000500000002000000020000000100000003000000000000000000c03f0000204000006040",
        ),
        (
            Component.EMBEDDING,
            9,
            component(9, 0, 2, [-12.0]),
            "0000001a0a09000000000000000100000002010000000000000000008040",
            "000000160b0900000000000000020100000000000000000080c0",
        ),
    ],
)
def test_the_golden_frames_of_entrenar_are_understood_and_answered(stack, what, step, other, sent, answer):
    server, workers = star(stack, 2)
    workers[0].socket.sendall(other)
    workers[1].socket.sendall(bytes.fromhex(sent))

    server.exchange(step, what)

    for worker in workers:
        assert frame(worker.payload()).hex() == answer


def test_samples_that_are_counted_behind_the_gradient_still_weigh_it(stack):
    server, workers = star(stack, 2)

    for worker, count in zip(workers, (1, 3), strict=True):
        worker.socket.sendall(whole(0, worker.number, [float(worker.number)] * 4, 0.0, 0, count))
    mean = server.exchange(0, Whole())

    assert mean.gradients.tolist() == [0.75] * 4


def test_a_worker_may_go_away_while_the_server_says_farewell(stack):
    server, (worker,) = star(stack, 1, timeout_s=30.0)
    elements = 16 << 20  # more than fits into the buffers of a connection
    pool = stack.enter_context(ThreadPoolExecutor(2))

    exchanging = pool.submit(server.exchange, 0, Whole())
    worker.socket.sendall(whole(0, 0, np.ones(elements, F32), 0.0, 0, 1))
    worker.socket.recv(1)  # of the mean, most of which is still to be sent
    closing_server = pool.submit(server.close)
    while not server._star._is_closing:
        pass
    worker.close()
    closing_server.result()

    with pytest.raises(LinkClosed, match="this gradient server was shut down"):
        exchanging.result()


def test_the_second_conversation_of_entrenar_byte_for_byte(stack):
    server, workers = star(stack, 2)

    for index in (1, 0):
        for worker in workers:
            worker.socket.sendall(block(0, worker.number, index, 2, [1.0 + worker.number, 2.0, 3.0], [2, 1]))
        server.exchange(0, ModelBlock(index, of=2))
        expected = struct.pack("<BQI", 9, 0, index) + sizes([2, 1]) + vector([1.5, 2.0, 3.0])
        assert [each.payload() for each in workers] == [expected, expected]
    for number, what in enumerate((Component.LM_HEAD, Component.FINAL_NORM, Component.EMBEDDING)):
        for worker in workers:
            worker.socket.sendall(component(0, worker.number, number, [4.0 * worker.number]))
        server.exchange(0, what)
        assert [each.payload() for each in workers] == [struct.pack("<BQB", 11, 0, number) + vector([2.0])] * 2

    for worker in workers:  # its driver ends without a word
        worker.close()
    server.shutdown()


def test_both_wires_are_spoken_on_one_port_and_end_with_the_same_bits(stack):
    server = serve(stack, 2)
    raw = stack.enter_context(closing(RawWorker(server.address))).join()
    ours = stack.enter_context(WorkerClient(server.address, timeout_s=10))
    server.wait_for_workers(10)
    raw.socket.sendall(whole(0, 0, [0.1, 2.0], 0.0, 0, 2))

    mean, received = together(
        lambda: server.exchange(0, Whole()), lambda: ours.exchange(0, np.array([0.7, 5.0], F32), Whole(), samples=1)
    )

    assert received.gradients.tobytes() == mean.gradients.tobytes()
    assert raw.payload()[17:25] == mean.gradients.tobytes()
    expected = (np.array([0.1, 2.0], F32) * F32(2) + np.array([0.7, 5.0], F32)) / F32(3)
    np.testing.assert_array_equal(mean.gradients, expected)


def test_large_gradients_of_entrenar_pass_through(stack):
    server, workers = star(stack, 2, weighting="equal")
    values = np.arange(5 << 20, dtype=F32)

    mean, *_ = together(
        lambda: server.exchange(0, Component.EMBEDDING),
        *[lambda each=each: each.socket.sendall(component(0, each.number, 2, values)) for each in workers],
        *[lambda each=each: each.payload() for each in workers],
    )

    np.testing.assert_array_equal(mean.gradients, values)


def test_who_calls_itself_by_anothers_number_halts_everybody(stack):
    server, workers = star(stack, 2)
    workers[1].socket.sendall(whole(0, 0, [1.0], 0.0, 0, 1))

    with pytest.raises(
        CollectiveMismatch, match=r"worker 1 \(node-1, .* it sent .* as worker 0, but it is worker 1"
    ) as caught:
        server.exchange(0, Whole())

    assert caught.value.peer == 1
    assert workers[0].socket.recv(100) == SHUTDOWN


def test_what_is_not_finite_shuts_workers_of_entrenar_down(stack):
    server, workers = star(stack, 2)
    workers[0].socket.sendall(whole(3, 0, [1.0, 1.0], 0.0, 0, 1))
    workers[1].socket.sendall(whole(3, 1, [1.0, np.inf], 0.0, 0, 1))

    with pytest.raises(NonFiniteGradient, match=r"worker 1 \(node-1, .* sent inf as element 1"):
        server.exchange(3, Whole())

    for each in workers:
        assert each.socket.recv(100) == SHUTDOWN


def test_extra_workers_of_entrenar_are_told_to_go(stack):
    server, _ = star(stack, 1)
    late = stack.enter_context(closing(RawWorker(server.address, "late")))

    assert late.socket.recv(100) == SHUTDOWN
    assert late.socket.recv(100) == b""


def test_a_heartbeat_changes_nothing(stack):
    server, [worker] = star(stack, 1)
    worker.socket.sendall(frame(b"\x06" + text("node-0") + struct.pack("<Q", 1)))
    worker.socket.sendall(whole(0, 0, [1.0], 0.0, 0, 1))

    assert server.exchange(0, Whole()).gradients.tolist() == [1.0]


def test_a_frame_that_counts_more_than_it_has_halts_everybody(stack):
    server, workers = star(stack, 2)
    workers[0].socket.sendall(frame(struct.pack("<BQIQfQQ", 4, 0, 0, 2**62 + 1, 0.0, 0, 0)))

    with pytest.raises(BadFrame, match=r"worker 0 \(node-0, .* cannot be understood"):
        server.exchange(0, Whole())

    assert workers[1].socket.recv(100) == SHUTDOWN


def test_entrenar_is_not_spoken_unless_asked_for(stack):
    server = serve(stack, 1, dialect=None)
    worker = stack.enter_context(closing(RawWorker(server.address)))

    said = iter(lambda: worker.socket.recv(4096), b"")

    assert b"this is not Phalanx" in b"".join(said)
    assert server.worker_count == 0


class RawServer:
    """A server of entrenar: it reads and answers its workers one after another, in the order of their numbers."""

    def __init__(self, stack, workers):
        self._stack = stack
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._count = workers
        self.address = Address(*self._listener.getsockname())
        self.workers = []
        self.requests = []

    def accept(self):
        for number in range(self._count):
            connected, _ = self._listener.accept()
            connected.settimeout(10)
            self.workers.append(self._stack.enter_context(closing(connected)))
            self.requests.append(read_payload(connected))
            connected.sendall(frame(struct.pack("<BII", 2, number, self._count)))

    def say(self, payload):
        for worker in self.workers:
            worker.sendall(frame(payload))

    def read(self):
        return [read_payload(worker) for worker in self.workers]


def clients(stack, server):
    def join():
        return stack.enter_context(WorkerClient(server.address, name="phalanx", dialect="entrenar", timeout_s=10))

    _, *joined = together(server.accept, *[join for _ in range(server._count)])
    return sorted(joined, key=lambda each: each.worker)


def test_our_worker_takes_part_in_the_first_conversation(stack):
    server = RawServer(stack, 2)
    workers = clients(stack, server)
    assert server.requests[0][:12] == b"\x01" + text("phalanx")
    values = np.arange(3 << 20, dtype=F32)

    def serve_step():
        server.say(struct.pack("<BQQQ", 3, 6, 10, 20))
        received = server.read()
        server.say(struct.pack("<BQ", 5, 6) + vector(values * 2) + struct.pack("<f", 0.75))
        server.say(b"\x07")
        return received

    def work(worker):
        shard = worker.receive_shard()
        mean = worker.exchange(shard.step, values, Whole(), loss=0.5, correct=4, samples=shard.stop - shard.start)
        return (shard.start, shard.stop), mean, worker.receive_shard()

    received, *results = together(serve_step, *[lambda each=each: work(each) for each in workers])

    assert received == [whole(6, number, values, 0.5, 4, 10)[4:] for number in range(2)]
    for bounds, mean, last in results:
        assert (bounds, last) == ((10, 20), None)
        assert (mean.step, mean.what, mean.loss) == (6, Whole(), 0.75)
        np.testing.assert_array_equal(mean.gradients, values * 2)


def test_our_worker_takes_part_in_the_second_conversation(stack):
    server = RawServer(stack, 1)
    [worker] = clients(stack, server)
    values = np.array([1.0, 2.0, 3.0], F32)

    def serve_step():
        received = server.read()
        server.say(struct.pack("<BQI", 9, 0, 1) + sizes([2, 1]) + vector(values + 1))
        received += server.read()
        server.say(struct.pack("<BQB", 11, 0, 2) + vector(values + 2))
        return received

    def work():
        first = worker.exchange(0, values, ModelBlock(1, of=2), sizes=(2, 1))
        return first, worker.exchange(0, values, Component.EMBEDDING)

    received, (first, second) = together(serve_step, work)

    assert received == [block(0, 0, 1, 2, values, [2, 1])[4:], component(0, 0, 2, values)[4:]]
    assert (first.what, first.sizes, first.gradients.tolist()) == (ModelBlock(1, of=2), (2, 1), [2.0, 3.0, 4.0])
    assert (second.what, second.gradients.tolist()) == (Component.EMBEDDING, [3.0, 4.0, 5.0])


def test_our_worker_refuses_the_answer_to_another_question(stack):
    server = RawServer(stack, 1)
    [worker] = clients(stack, server)
    server.say(struct.pack("<BQB", 11, 8, 2) + vector([1.0]))

    with pytest.raises(
        CollectiveMismatch, match="it answered with step 8, the embedding: 1 elements, but this worker sent"
    ):
        worker.exchange(7, np.ones(1, F32), Component.EMBEDDING)


def test_our_worker_says_that_the_server_stopped(stack):
    server = RawServer(stack, 1)
    [worker] = clients(stack, server)
    server.say(b"\x07")

    with pytest.raises(Halted, match="stopped at step 7, before it had the mean of the whole gradient") as caught:
        worker.exchange(7, np.ones(1, F32), Whole())

    assert caught.value.step == 7


def test_our_worker_notices_that_the_server_died(stack):
    server = RawServer(stack, 1)
    [worker] = clients(stack, server)
    server.workers[0].close()

    with pytest.raises(PeerLost, match="closed the connection while this worker was"):
        worker.receive_shard()


def test_our_worker_is_refused_by_a_server_that_is_full(stack):
    server, _ = star(stack, 1)

    with pytest.raises(JoinRefused, match="has it all the workers that it expects"):
        WorkerClient(server.address, name="late", dialect="entrenar", timeout_s=10)


def test_workers_with_equal_node_ids_are_told_apart_by_their_numbers(stack):
    server = serve(stack, 2)

    workers = [stack.enter_context(closing(RawWorker(server.address, "node"))).join() for _ in range(2)]
    server.wait_for_workers(10)

    assert [each.number for each in workers] == [0, 1]


def test_a_node_id_may_be_as_long_as_a_frame(stack):
    server = serve(stack, 1)

    worker = stack.enter_context(closing(RawWorker(server.address, "n" * 1_000_000))).join()

    assert (worker.number, worker.workers) == (0, 1)


@pytest.mark.parametrize(
    ("samples", "workers", "expected"),
    [(101, 2, [(0, 50), (50, 101)]), (7, 3, [(0, 2), (2, 4), (4, 7)]), (1, 2, [(0, 0), (0, 1)]), (4, 1, [(0, 4)])],
)
def test_samples_are_divided_as_entrenar_divides_them(samples, workers, expected):
    assert [(part.start, part.stop) for part in split_samples(samples, workers)] == expected

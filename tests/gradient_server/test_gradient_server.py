import logging
import socket
import tracemalloc
from collections import deque
from contextlib import ExitStack, closing

import numpy as np
import pytest
from star_play import F32, exchange, full, join, serve, star, together

from phalanx.errors import (
    AuthError,
    CollectiveMismatch,
    ConfigError,
    DeadlineExceeded,
    JoinRefused,
    LinkClosed,
    NonFiniteGradient,
    PeerLost,
    RemoteError,
)
from phalanx.gradient_server import Component, GradientServer, ModelBlock, Whole, WorkerClient
from phalanx.gradient_server.peer import OurWire, Peer
from phalanx.transport import Credentials, Deadline, StreamLink, call
from phalanx.wire import Address, Purpose, gradient

ANYWHERE = "0.0.0.0"  # noqa: S104 - it is refused, or has a token
LARGE = 3 << 20  # elements: more than the network holds
RUN = gradient.FRAME_BYTES // gradient.ITEM_BYTES


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def stated(length):
    return gradient.Gradient(2, Whole(), length, (length,))


@pytest.mark.parametrize("length", [0, 1, 5, LARGE])
@pytest.mark.parametrize("is_streamed", [True, False])
def test_everybody_gets_the_mean_of_all(stack, length, is_streamed):
    server, workers = star(stack, 3)

    def serve_step():
        if is_streamed:
            return server.exchange(4, Whole())
        mean = server.collect(4, Whole())
        server.broadcast(mean)
        return mean

    calls = [exchange(each, 4, gradients=full(each.worker + 1.0, length), samples=2) for each in workers]
    means = together(serve_step, *calls)

    for mean in means:
        np.testing.assert_array_equal(mean.gradients, full(2.0, length))
        assert (mean.step, mean.what, mean.samples, mean.sizes) == (4, Whole(), 6, (length,))


def fold_short_runs(monkeypatch, workers):
    """Have runs of the length of a frame."""
    monkeypatch.setattr("phalanx.gradient_server.collect._SCRATCH_BYTES", workers * gradient.FRAME_BYTES)


def test_the_mean_of_what_has_come_is_answered_while_the_rest_is_missing(stack, monkeypatch):
    fold_short_runs(monkeypatch, workers=1)
    server, [worker] = star(stack, 1)
    elements = 2 * RUN
    message = gradient.Gradient(0, Whole(), elements, (elements,))
    head, first, second = gradient.frames(message, memoryview(full(3.0, elements)).cast("B"))
    received = np.zeros(elements, F32)
    worker._peer.room = memoryview(received).cast("B")

    def work():
        heard = _say_and_hear(worker, [head, first], lambda: received[RUN - 1] == 3.0)
        return heard, _say_and_hear(worker, [second], lambda: received[-1] == 3.0)

    _, (early, late) = together(lambda: server.exchange(0, Whole()), work)

    assert [type(event) for event in early] == [gradient.GradientBegan]
    assert [type(event) for event in late] == [gradient.MessageEnded]


def _say_and_hear(worker, frames, is_enough):
    for frame in frames:
        worker._peer.post(frame)
    heard = []
    while not is_enough():
        worker._peer.speak()
        heard += worker._peer.hear()
        assert is_enough() or worker._wait(Deadline.after(10))
    return heard


def test_gradients_count_for_their_samples_and_so_do_losses(stack):
    server, workers = star(stack, 2)

    mean, *_ = together(
        lambda: server.exchange(0, Whole()),
        exchange(workers[0], loss=1.0, correct=2, samples=1),
        exchange(workers[1], loss=2.0, correct=3, samples=3),
    )

    np.testing.assert_array_equal(mean.gradients, full(1.75))
    assert (mean.loss, mean.correct, mean.samples) == (1.75, 5, 4)


def test_equal_weights_can_be_asked_for(stack):
    server, workers = star(stack, 2, weighting="equal")

    mean, *_ = together(lambda: server.exchange(0, Whole()), *[exchange(each, samples=each.worker) for each in workers])

    np.testing.assert_array_equal(mean.gradients, full(1.5))


def test_blocks_and_components_go_the_same_way_as_the_whole(stack):
    server, workers = star(stack, 2)
    parts = [ModelBlock(1, of=2), ModelBlock(0, of=2), *Component]

    def work(worker):
        return [
            exchange(worker, 3, what, full(number + worker.worker), sizes=(2, 3))() for number, what in enumerate(parts)
        ]

    means, *theirs = together(
        lambda: [server.exchange(3, what) for what in parts], *[lambda each=each: work(each) for each in workers]
    )

    for seen in (means, *theirs):
        assert [(mean.what, mean.sizes, mean.gradients[0]) for mean in seen] == [
            (what, (2, 3), number + 0.5) for number, what in enumerate(parts)
        ]


@pytest.mark.parametrize("length", [LARGE // 4, 2 * LARGE])
def test_a_worker_may_send_ahead_of_what_it_receives(stack, length):
    server, [worker] = star(stack, 1)

    def work():
        for step in range(3):
            worker.send(step, full(step, length), Whole())
        return [worker.receive().gradients[0] for _ in range(3)]

    _, received = together(lambda: [server.exchange(step, Whole()) for step in range(3)], work)

    assert received == [0.0, 1.0, 2.0]


def test_the_mean_may_overwrite_what_was_sent(stack):
    server, workers = star(stack, 2)
    arrays = [full(1.0, LARGE).reshape(3, -1), full(3.0, LARGE).reshape(3, -1)]

    together(
        lambda: server.exchange(0, Whole()),
        *[exchange(each, gradients=array, out=array) for each, array in zip(workers, arrays, strict=True)],
    )

    for array in arrays:
        assert (array == 2.0).all()


def test_shards_are_disjoint_and_complete_and_end_with_none(stack):
    server, workers = star(stack, 3)
    server.total_samples = 11

    server.send_shards(5)
    shards = [worker.receive_shard() for worker in workers]
    server.shutdown()

    assert [shard.step for shard in shards] == [5, 5, 5]
    assert [number for shard in shards for number in range(shard.start, shard.stop)] == list(range(11))
    assert [worker.receive_shard() for worker in workers] == [None, None, None]


def test_strangers_disturb_nobody(stack, caplog):
    caplog.set_level(logging.WARNING, "phalanx")
    server = serve(stack, 2)
    where = (server.address.host, server.address.port)
    for said in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(200), b"PHLX"):
        socket.create_connection(where).close()
        stack.enter_context(socket.create_connection(where)).sendall(said)

    workers = join(stack, server, 2)
    server.wait_for_workers(10)
    mean, *_ = together(lambda: server.exchange(0, Whole()), *map(exchange, workers))

    assert mean.gradients[0] == 1.5
    assert "HTTP" in caplog.text


def test_who_proves_itself_and_then_says_nothing_is_sent_away(stack, monkeypatch):
    monkeypatch.setattr("phalanx.gradient_server.loop._JOIN_S", 0.05)
    server = serve(stack, 1)

    silent = call([server.address], Deadline.after(10), Credentials(), Purpose.STAR, whom="the server")
    silent.settimeout(10)

    with closing(silent):
        assert silent.recv(1) == b""


def test_who_does_not_know_the_token_cannot_join(stack):
    server = serve(stack, 1, credentials=Credentials(token=b"open sesame, please"))

    with pytest.raises(AuthError):
        join(stack, server, credentials=Credentials(token=b"a wrong and long guess"))

    join(stack, server, credentials=Credentials(token=b"open sesame, please"))
    server.wait_for_workers(10)


def test_late_extra_workers_are_refused_in_words(stack):
    server, workers = star(stack, 2)

    with pytest.raises(JoinRefused, match="all 2 workers have joined already"):
        join(stack, server)

    means = together(lambda: server.exchange(0, Whole()), *map(exchange, workers))
    assert means[0].gradients[0] == 1.5


def test_two_workers_cannot_have_the_same_name(stack):
    server = serve(stack, 2)
    join(stack, server, name="anvil")

    with pytest.raises(JoinRefused, match="there is a worker with the name anvil already"):
        join(stack, server, name="anvil")

    join(stack, server, name="bellows")
    server.wait_for_workers(10)


def test_a_worker_that_leaves_before_all_have_come_gives_up_its_place(stack):
    server = serve(stack, 2)
    first, second = join(stack, server, 1)[0], None
    first.close()

    while second is None or second.worker != 0:  # the server may hear of the farewell later than of the next worker
        second = join(stack, server)[0] if second is None else second
        if second.worker != 0:
            second.close()
            second = None
    join(stack, server)
    server.wait_for_workers(10)

    assert server.worker_count == 2


def test_missing_workers_are_an_error_at_the_deadline_and_may_still_come(stack):
    server = serve(stack, 2)
    join(stack, server, name="anvil")

    with pytest.raises(DeadlineExceeded, match=r"1 of 2 workers joined within 0\.05 s \(worker 0 \(anvil, 127"):
        server.wait_for_workers(0.05)

    join(stack, server)
    server.wait_for_workers(10)


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"step": 1}, r"worker 1 \(127.* sent step 1, the whole gradient, but the server collects step 0"),
        ({"what": Component.EMBEDDING}, "sent step 0, the embedding, but the server collects step 0, the whole"),
        ({"gradients": full(1.0, 6)}, r"worker 1 \(.* 6 elements, but worker 0 .* 5 elements"),
        ({"sizes": (2, 3)}, r"worker 1 \(.* 5 elements \(2 \+ 3\), but worker 0"),
    ],
)
def test_who_sends_something_else_halts_everybody_and_is_named(stack, odd, words):
    server, workers = star(stack, 3)

    errors = together(
        lambda: server.exchange(0, Whole()), exchange(workers[0]), exchange(workers[1], **odd), exchange(workers[2])
    )

    for error in errors:
        with pytest.raises(CollectiveMismatch, match=words) as caught:
            raise error
        assert caught.value.peer == 1


@pytest.mark.parametrize("position", [0, LARGE - 1])
def test_what_is_not_finite_halts_everybody_and_is_traced(stack, position):
    server, workers = star(stack, 3)
    bad = full(1.0, LARGE)
    bad[position] = np.nan
    given = [full(1.0, LARGE), full(1.0, LARGE), bad]

    errors = together(
        lambda: server.exchange(9, Whole()),
        *[exchange(each, 9, gradients=array) for each, array in zip(workers, given, strict=True)],
    )

    for error in errors:
        assert isinstance(error, NonFiniteGradient)
        assert (error.step, error.rank) == (9, 2)
        assert f"sent nan as element {position} of the whole gradient at step 9" in str(error)
    with pytest.raises(NonFiniteGradient, match="worker 2"):
        server.exchange(10, Whole())


@pytest.mark.parametrize("length", [5, LARGE])
def test_a_worker_that_dies_in_the_middle_is_named_everywhere(stack, length):
    server, workers = star(stack, 3)
    victim = workers[1]
    victim._peer.say(stated(length))
    victim._peer.speak()
    victim.close()

    errors = together(
        lambda: server.exchange(2, Whole()), *[exchange(workers[n], 2, gradients=full(1.0, length)) for n in (0, 2)]
    )

    for error in errors:
        assert isinstance(error, PeerLost)
        assert error.peer == 1
        assert "worker 1 (127.0.0.1:" in str(error)
        assert "went away" in str(error)


def test_a_worker_that_dies_while_it_is_held_back_is_named_though_another_has_not_begun(stack):
    server, workers = star(stack, 2)

    def send_and_die():
        workers[0].send(2, full(1.0, 2**16), Whole())
        workers[0].close()

    error, _ = together(lambda: server.exchange(2, Whole()), send_and_die)

    assert isinstance(error, PeerLost)
    assert error.peer == 0


def test_a_worker_may_hang_up_once_it_has_all_it_needs(stack):
    server, workers = star(stack, 3)

    def work(worker):
        mean = exchange(worker, gradients=full(worker.worker + 1.0, LARGE))()
        worker.close()
        return mean

    means = together(lambda: server.exchange(0, Whole()), *[lambda each=each: work(each) for each in workers])

    assert [mean.gradients[-1] for mean in means] == [2.0] * 4
    server.shutdown()


def test_a_mean_that_has_come_counts_though_a_worker_went_away_since(stack):
    server, workers = star(stack, 2)
    for worker in workers:
        worker.send(0, full(1.0), Whole())
    server.exchange(0, Whole())
    workers[1].close()
    with pytest.raises(PeerLost, match="worker 1"):
        server.exchange(1, Whole())

    mean = workers[0].receive()

    assert mean.gradients[0] == 1.0
    with pytest.raises(PeerLost, match="worker 1"):
        workers[0].receive_shard()


def test_a_halt_is_heard_though_the_connection_broke_since(stack):
    server, workers = star(stack, 2)
    together(lambda: server.exchange(0, Whole()), exchange(workers[1], step=1))
    server.close()
    workers[0]._peer.say(stated(LARGE), memoryview(bytes(4 * LARGE)))
    with pytest.raises(PeerLost):
        deque(iter(workers[0]._peer.speak, "for ever"))

    with pytest.raises(CollectiveMismatch, match="worker 1"):
        workers[0].receive_shard()


def test_a_halt_does_not_wait_for_the_rest_of_a_mean(stack, monkeypatch):
    fold_short_runs(monkeypatch, workers=2)
    server, workers = star(stack, 2)
    bad = full(1.0, LARGE)
    bad[-1] = np.nan
    workers[0]._peer.say(gradient.Gradient(0, Whole(), LARGE, (LARGE,)), memoryview(full(1.0, LARGE)).cast("B"))

    def send_without_listening():
        while not workers[0]._peer.is_quiet and workers[0]._wait(Deadline.after(10)):
            workers[0]._peer.speak()

    together(lambda: server.exchange(0, Whole()), exchange(workers[1], gradients=bad), send_without_listening)
    workers[0]._peer.room = memoryview(bytearray(4 * LARGE))
    heard = []
    while not any(isinstance(event.message, gradient.ServerHalt) for event in heard):
        heard += workers[0]._peer.hear()

    assert workers[0]._peer.bytes_heard < 4 * (LARGE - RUN)


def test_what_is_being_said_can_be_broken_off_between_frames(stack, monkeypatch):
    monkeypatch.setattr(gradient, "FRAME_BYTES", 2**20)
    peers = [Peer(StreamLink(stack.enter_context(end), 0), OurWire()) for end in socket.socketpair()]
    mean = gradient.Mean(0, Whole(), LARGE, (LARGE,))
    halt = gradient.ServerHalt(0, gradient.ServerHaltReason.LOST, None, "")
    peers[0].say(mean, memoryview(bytes(4 * LARGE)))
    peers[0].speak()

    peers[0].break_off()
    peers[0].say(halt)
    peers[1].room = memoryview(bytearray(4 * LARGE))
    heard = []
    while gradient.MessageEnded(halt) not in heard:
        peers[0].speak()
        heard += peers[1].hear()

    assert heard == [gradient.GradientBegan(mean), gradient.MessageEnded(halt)]


def test_a_worker_that_says_nothing_is_an_error_at_the_deadline_for_everybody(stack):
    server, workers = star(stack, 2, timeout_s=0.2)

    errors = together(lambda: server.exchange(0, Whole()), exchange(workers[0]))

    for error in errors:
        assert isinstance(error, DeadlineExceeded)
        assert error.peer == 1
        assert "did not finish exchanging step 0, the whole gradient within 0.2 s" in str(error)


def test_a_server_that_says_nothing_is_an_error_at_the_deadline(stack):
    server = serve(stack, 1)
    [worker] = join(stack, server, timeout_s=0.2)

    with pytest.raises(DeadlineExceeded, match=r"did not answer within 0\.2 s while this worker was waiting for its"):
        worker.receive_shard()


def test_workers_hear_when_the_server_hangs_up(stack):
    server, [worker] = star(stack, 1)
    server.close()
    server.close()

    with pytest.raises(
        PeerLost, match=r"the gradient server at 127.* closed the connection while this worker was waiting"
    ):
        worker.receive_shard()
    with pytest.raises(LinkClosed, match="was shut down"):
        server.exchange(0, Whole())


def test_a_server_that_cannot_go_on_tells_its_workers(stack, monkeypatch):
    server, [worker] = star(stack, 1)

    def fail(*_):
        raise MemoryError("no room")

    monkeypatch.setattr("phalanx.gradient_server.collect.check_shapes", fail)

    ours, theirs = together(lambda: server.exchange(0, Whole()), exchange(worker))

    assert isinstance(ours, MemoryError)
    assert isinstance(theirs, RemoteError)
    assert "the gradient server failed: MemoryError('no room')" in str(theirs)


@pytest.mark.slow
def test_a_large_component_needs_the_memory_of_its_mean_and_little_more(stack):
    elements = 134_217_728 // 4
    server, workers = star(stack, 2, timeout_s=50)
    arrays = [np.ones(elements, F32) for _ in workers]
    tracemalloc.start()

    try:
        mean, *_ = together(
            lambda: server.exchange(0, Component.LM_HEAD),
            *[exchange(each, 0, Component.LM_HEAD, a, out=a) for each, a in zip(workers, arrays, strict=True)],
        )
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert mean.gradients[-1] == 1.0
    assert peak_bytes < 4 * elements + 16 * 2**20


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "at least 1 worker, not 0"),
        ({"workers": 1, "weighting": "tokens"}, "'tokens' is not a weighting"),
        ({"workers": 1, "dialect": "latin"}, "'latin' is not a dialect"),
        ({"workers": 1, "host": ANYWHERE}, "without a token anybody could join"),
        (
            {"workers": 1, "host": ANYWHERE, "dialect": "entrenar", "credentials": Credentials(token=bytes(32))},
            "entrenar's workers have no token",
        ),
    ],
)
def test_a_server_that_makes_no_sense_is_a_bad_request(options, words):
    with pytest.raises(ConfigError, match=words):
        GradientServer(**options)


def test_an_insecure_server_without_a_token_lets_only_entrenar_in(stack):
    server = serve(stack, 1, host=ANYWHERE, dialect="entrenar", is_insecure=True)
    here = Address("127.0.0.1", server.address.port)

    with pytest.raises(AuthError, match="asks for a token"):
        WorkerClient(here, timeout_s=10)
    stack.enter_context(WorkerClient(here, dialect="entrenar", timeout_s=10))

    server.wait_for_workers(10)
    assert server.worker_count == 1


def test_calls_that_make_no_sense_are_bad_requests_and_change_nothing(stack):
    server = serve(stack, 1)
    with pytest.raises(ConfigError, match="0 of 1 workers have joined: call wait_for_workers first"):
        server.collect(0, Whole())
    [worker] = join(stack, server)
    server.wait_for_workers(10)

    with pytest.raises(ConfigError, match="set total_samples first"):
        server.send_shards(0)
    with pytest.raises(ConfigError, match="these are float64"):
        worker.send(0, np.zeros(3), Whole())
    with pytest.raises(ConfigError, match="the mean needs 5 contiguous f32, and out has 4"):
        worker.exchange(0, full(1.0), Whole(), out=full(0.0, 4))
    with pytest.raises(ConfigError, match="send a gradient first"):
        worker.receive()

    mean, _ = together(lambda: server.exchange(0, Whole()), exchange(worker))
    assert mean.gradients[0] == 1.0

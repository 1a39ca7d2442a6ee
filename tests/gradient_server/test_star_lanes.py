from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from star_play import F32, exchange, full, join, serve, together

from phalanx.buffers import CHUNK
from phalanx.errors import CollectiveMismatch, ConfigError, PeerLost
from phalanx.gradient_server import Component, GradientServer, ModelBlock, Whole, WorkerClient
from phalanx.gradient_server.lanes import Lanes, add_up
from phalanx.wire import gradient

INF, NAN = np.inf, np.nan
SPECIAL = [-0.0, 0.0, INF, -INF, NAN, 3e38, -3e38, 1e-45]
LENGTH = CHUNK + 3  # more than is added up at a time
LARGE = 3 << 20  # more than the network holds


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def lanes_of(count, length=LENGTH, seed=0):
    """The gradient of every lane: of any size, so that the order of additions shows, and some are no numbers."""
    random = np.random.default_rng(seed)
    lanes = (random.standard_normal((count, length)) * 10.0 ** random.integers(-6, 6, (count, length))).astype(F32)
    special = random.integers(0, length, length // 8)
    lanes[:, special] = random.choice(np.array(SPECIAL, F32), (count, len(special)))
    lanes[:, 0] = -0.0
    return lanes


def tree(terms):
    """The canonical sum, written down once more: split at the largest power of two below the number of terms."""
    if len(terms) == 1:
        return terms[0]
    half = 1
    while half * 2 < len(terms):
        half *= 2
    with np.errstate(all="ignore"):
        return tree(terms[:half]) + tree(terms[half:])


def pieces_of(lanes, worker, workers):
    """What a worker sends: the sums of the whole subtrees of its lanes, a row for each."""
    return np.stack([tree(lanes[span.start : span.stop]) for span in Lanes(len(lanes), workers).pieces(worker)])


def bits(values):
    return values.view(np.uint32).tolist()


def lane_star(stack, count, lanes):
    server = serve(stack, count, lanes=lanes)
    workers = join(stack, server, count, lanes=lanes)
    server.wait_for_workers(10)
    return server, workers


def exchange_pieces(worker, lanes, step=0, what=None, **options):
    return exchange(worker, step, what, pieces_of(lanes, worker.worker, worker.workers), **options)


shared_out = st.integers(1, 40).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count)))


@settings(deadline=None)
@given(shared_out)
def test_the_pieces_of_all_workers_are_all_lanes_in_order(shared):
    lanes = Lanes(*shared)

    spans = [span for worker in range(lanes.workers) for span in lanes.pieces(worker)]

    assert (spans[0].start, spans[-1].stop) == (0, lanes.count)
    assert all(span and span.stop == following.start for span, following in pairwise(spans))
    assert [lane for worker in range(lanes.workers) for lane in lanes.owned(worker)] == list(range(lanes.count))


@settings(deadline=None)
@given(shared_out, st.integers(0, 2**32 - 1))
def test_pieces_add_up_to_the_tree_over_the_lanes(shared, seed):
    count, workers = shared
    lanes = lanes_of(count, 33, seed)

    sent = [pieces_of(lanes, worker, workers) for worker in range(workers)]
    total = np.empty(33, np.float32)

    add_up(Lanes(count, workers), sent, slice(0, 33), total)

    assert bits(total) == bits(tree(lanes))


def test_the_lanes_of_these_tests_add_up_differently_in_another_order():
    lanes = lanes_of(8)
    with np.errstate(all="ignore"):
        in_order = np.add.reduce(lanes, axis=0)

    assert bits(in_order) != bits(tree(lanes))
    assert np.isnan(tree(lanes)).any()


@pytest.mark.parametrize(
    ("lanes", "size"), [(lanes, size) for lanes in (6, 7, 8) for size in (1, 2, 3, 4, 5, 8) if size <= lanes]
)
def test_any_number_of_workers_gets_the_bits_of_one_process(stack, lanes, size):
    given_ = lanes_of(lanes)
    expected = tree(given_)
    server, workers = lane_star(stack, size, lanes)

    sums = together(lambda: server.exchange(0, Whole()), *[exchange_pieces(each, given_) for each in workers])

    for total in sums:
        assert total.sizes == (LENGTH,)
        assert bits(total.gradients) == bits(expected)


def test_blocks_components_and_the_whole_may_follow_each_other(stack):
    parts = [ModelBlock(1, of=2), ModelBlock(0, of=2), *Component, Whole()]
    given_ = [lanes_of(8, 5 + number, number) for number in range(len(parts))]
    server, workers = lane_star(stack, 3, 8)

    def work(worker):
        return [exchange_pieces(worker, lanes, 3, what)() for what, lanes in zip(parts, given_, strict=True)]

    everybody = together(
        lambda: [server.exchange(3, what) for what in parts], *[lambda each=each: work(each) for each in workers]
    )

    for sums in everybody:
        assert [(total.step, total.what, bits(total.gradients)) for total in sums] == [
            (3, what, bits(tree(lanes))) for what, lanes in zip(parts, given_, strict=True)
        ]


def test_the_two_halves_of_an_exchange_give_the_same(stack):
    given_ = lanes_of(8, 9)
    server, workers = lane_star(stack, 3, 8)

    def serve_step():
        total = server.collect(0, Whole())
        server.broadcast(total)
        return total

    sums = together(serve_step, *[exchange_pieces(each, given_) for each in workers])

    assert [bits(total.gradients) for total in sums] == [bits(tree(given_))] * 4


def test_the_sum_may_overwrite_a_row_of_what_was_sent(stack):
    given_ = lanes_of(8, LARGE // 2)
    server, workers = lane_star(stack, 3, 8)
    sent = [pieces_of(given_, worker.worker, 3) for worker in workers]

    together(
        lambda: server.exchange(0, Whole()),
        *[exchange(each, gradients=rows, out=rows[0]) for each, rows in zip(workers, sent, strict=True)],
    )

    for rows in sent:
        np.testing.assert_array_equal(rows[0].view(np.uint32), tree(given_).view(np.uint32))


def test_pieces_may_be_sent_ahead_of_the_sums_that_are_received(stack):
    server, workers = lane_star(stack, 2, 6)

    def work(worker):
        for step in range(3):
            worker.send(step, full(step, 2 * LARGE), Whole())
        return [worker.receive().gradients[-1] for _ in range(3)]

    _, *received = together(
        lambda: [server.exchange(step, Whole()) for step in range(3)],
        *[lambda each=each: work(each) for each in workers],
    )

    assert received == [[0.0, 4.0, 8.0]] * 2


def test_nothing_is_weighted_but_losses_are(stack):
    server, workers = lane_star(stack, 2, 2)

    total, *_ = together(
        lambda: server.exchange(0, Whole()),
        exchange(workers[0], loss=1.0, correct=2, samples=1),
        exchange(workers[1], loss=2.0, correct=3, samples=3),
    )

    np.testing.assert_array_equal(total.gradients, full(3.0))
    assert (total.loss, total.correct, total.samples) == (1.75, 5, 4)


@pytest.mark.parametrize(
    ("length", "sizes", "words"),
    [
        (10, (10,), r"worker 1 \(.*: 10 elements, but the sum of its lanes, 3 to 5 of 8, has 2 pieces of one length"),
        (12, (4, 4, 4), r"worker 1 \(.*: 12 elements \(4 \+ 4 \+ 4\), but the sum of its lanes, 3 to 5 of 8"),
        (10, (4, 6), r"worker 1 \(.*: 10 elements \(4 \+ 6\), but the sum of its lanes, 3 to 5 of 8"),
        (12, (6, 6), r"worker 1 \(.*: 12 elements \(6 \+ 6\), but worker 0 \(.*: 10 elements \(5 \+ 5\)"),
    ],
)
def test_who_sends_other_pieces_halts_everybody_and_is_named(stack, length, sizes, words):
    server, workers = lane_star(stack, 3, 8)

    errors = together(
        lambda: server.exchange(0, Whole()),
        exchange(workers[0], gradients=full(1.0, 10)),
        exchange(workers[1], gradients=full(1.0, length), sizes=sizes),
        exchange(workers[2]),
    )

    for error in errors:
        with pytest.raises(CollectiveMismatch, match=words) as caught:
            raise error
        assert caught.value.peer == 1


def test_a_worker_with_lanes_does_not_take_the_mean_of_a_server_without(stack):
    server = serve(stack, 2)
    workers = join(stack, server, 2, lanes=6)
    server.wait_for_workers(10)

    _, *errors = together(
        lambda: server.exchange(0, Whole()), *[exchange(each, gradients=full(1.0, 10)) for each in workers]
    )

    for error in errors:
        with pytest.raises(
            CollectiveMismatch, match=r"it answered with .*10 elements \(5 \+ 5\), but this worker sent"
        ):
            raise error


def test_a_worker_that_dies_between_its_pieces_is_named_everywhere(stack):
    server, workers = lane_star(stack, 3, 8)
    message = gradient.Gradient(2, Whole(), 10, (5, 5))
    head, _ = gradient.frames(message, memoryview(full(1.0, 10)).cast("B"))
    workers[1]._peer.post(head)
    workers[1]._peer.post(gradient.data_frame(message, memoryview(full(1.0)).cast("B")))
    workers[1]._peer.speak()
    workers[1].close()

    errors = together(
        lambda: server.exchange(2, Whole()),
        exchange(workers[0], 2, gradients=full(1.0, 10)),
        exchange(workers[2], 2),
    )

    for error in errors:
        with pytest.raises(PeerLost, match=r"worker 1 \(127\.0\.0\.1:.* went away"):
            raise error
        assert error.peer == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 3, "lanes": 2}, "2 lanes are too few for 3 workers"),
        ({"workers": 1, "lanes": 0}, "0 lanes are too few for 1 workers"),
        ({"workers": 1, "lanes": 8, "dialect": "entrenar"}, "entrenar's protocol has no lanes, and 8 were asked for"),
    ],
)
def test_lanes_that_cannot_be_are_a_bad_request(options, words):
    with pytest.raises(ConfigError, match=words):
        GradientServer(**options)


def test_a_worker_finds_out_that_its_lanes_cannot_be(stack):
    server = serve(stack, 3)

    with pytest.raises(ConfigError, match="entrenar's protocol has no lanes"):
        WorkerClient(server.address, lanes=8, dialect="entrenar")
    with pytest.raises(ConfigError, match="2 lanes are too few for 3 workers"):
        join(stack, server, lanes=2)


def test_pieces_that_make_no_sense_are_bad_requests_and_change_nothing(stack):
    server, workers = lane_star(stack, 2, 6)

    with pytest.raises(ConfigError, match="5 elements cannot be cut into 2 pieces of one length"):
        workers[0].exchange(0, full(1.0), Whole())
    with pytest.raises(ConfigError, match="the mean needs 5 contiguous f32, and out has 10"):
        workers[0].exchange(0, full(1.0, 10), Whole(), out=full(0.0, 10))

    total, *_ = together(
        lambda: server.exchange(0, Whole()), *[exchange(each, gradients=full(1.0, 10)) for each in workers]
    )
    np.testing.assert_array_equal(total.gradients, full(4.0))

"""Over a group of torch.distributed an engine gets the bits that it gets over our own transports."""

import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
from engine_play import LANES, batches_of, digest_of, make_engine, run, train
from spread import of_all
from torch_group import over_gloo, starting_over_gloo

from phalanx.buffers import DType, LaneShares, fold_pieces
from phalanx.errors import ConfigError, DeadlineExceeded, NonFiniteGradient, PeerLost, RemoteError, WeightsDiverged
from phalanx.parallel import TorchExchange
from phalanx.parallel.reduction.torch_exchange import add_up


@pytest.fixture(scope="module")
def alone_result():
    return run(1, steps=10, micro=2, clip=0.5)


def take_steps(exchange):
    engine = make_engine(exchange, clip=0.5)
    reports = train(engine, 10, micro=2)
    return f"{[(each.loss.hex(), each.norm.hex()) for each in reports]} {digest_of(engine)}"


@pytest.mark.parametrize("size", [1, 3, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 4))])
def test_gloo_gives_the_bits_of_our_own_transports(size, alone_result, tmp_path):
    assert of_all(over_gloo(size, take_steps, tmp_path)) == alone_result


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("length", [1, 7, 70_001])
def test_pieces_are_added_up_as_numpy_does_it(size, length):
    shares = LaneShares.even(LANES, size)
    covered = [piece for rank in range(size) for piece in shares.pieces(rank)]
    pieces = np.random.default_rng(0).standard_normal((len(covered), length), np.float32)
    expected = np.empty(length, np.float32)
    fold_pieces(DType.F32, covered, list(pieces.copy()), expected, divisor=7.0)

    found = add_up(covered, torch.from_numpy(pieces), LANES, 7.0)

    assert found.numpy().tobytes() == expected.tobytes()


def test_lanes_in_any_order_are_added_up_in_their_own():
    pieces = np.array([[1.0], [1e8], [-1e8], [3.0]], np.float32)
    covered = [range(3, 4), range(1), range(1, 2), range(2, 3)]

    found = add_up(covered, torch.from_numpy(pieces), 4, None)

    assert found.tolist() == [4.0]


def test_all_ranks_begin_with_the_weights_of_the_first(tmp_path):
    def work(exchange):
        return digest_of(make_engine(exchange, seed=exchange.rank))

    digests = over_gloo(2, work, tmp_path)

    assert digests[0] == digests[1]


def test_ranks_with_different_models_are_told_how_they_differ(tmp_path):
    def work(exchange):
        model = torch.nn.Linear(4, 1 + exchange.rank)
        with pytest.raises(ConfigError) as raised:
            make_engine(exchange, model=lambda: model)
        return str(raised.value)

    words = of_all(over_gloo(2, work, tmp_path))

    assert "rank 0 has parameter weight of [1, 4] float32, where rank 1 has parameter weight of [2, 4]" in words


def test_a_checkpoint_is_saved_and_loaded(tmp_path):
    def work(exchange):
        engine = make_engine(exchange)
        train(engine, 2)
        engine.save(tmp_path / "saved")
        train(engine, 2)
        again = make_engine(exchange, seed=3)
        again.load(tmp_path / "saved")
        train(again, 2)
        return [engine.step_number, digest_of(engine), again.step_number, digest_of(again)]

    step, digest, *again = of_all(over_gloo(3, work, tmp_path))

    assert again == [step, digest]


def test_a_value_that_is_not_finite_halts_all_ranks(tmp_path):
    def work(exchange):
        def batches(lane):
            return [(x * (float("nan") if lane == 4 else 1.0), y, lane) for x, y, lane in batches_of(0)(lane)]

        with pytest.raises(NonFiniteGradient) as raised:
            make_engine(exchange).step(batches, lambda lane: (lane,))
        return [raised.value.rank, raised.value.lane, str(raised.value)]

    rank, lane, _ = of_all(over_gloo(3, work, tmp_path))

    assert (rank, lane) == (1, 4)


def test_other_weights_are_found(tmp_path):
    def work(exchange):
        engine = make_engine(exchange)
        if exchange.rank == 2:
            engine.model.first.weight.data[1, 1] += 1
        with pytest.raises(WeightsDiverged) as raised:
            train(engine, 2)
        return [raised.value.rank, raised.value.parameter]

    assert over_gloo(3, work, tmp_path) == [[2, "first.weight"]] * 3


def test_a_rank_whose_program_fails_tells_the_others_why(tmp_path):
    def work(exchange):
        def batches(lane):
            if exchange.rank == 1:
                raise KeyError("no such sample")
            return batches_of(0)(lane)

        with pytest.raises((KeyError, RemoteError)) as raised:
            make_engine(exchange).step(batches)
        return [type(raised.value).__name__, str(raised.value)]

    first, second, third = over_gloo(3, work, tmp_path)

    assert second == ["KeyError", "'no such sample'"]
    for kind, words in (first, third):
        assert kind == "RemoteError"
        assert words.startswith("rank 1 failed at step 0:")
        assert "KeyError: 'no such sample'" in words


def test_a_rank_that_leaves_the_block_with_an_error_tells_the_others_why(tmp_path):
    def work(exchange):
        if exchange.rank == 1:
            raise ValueError("out of the block")
        with pytest.raises(RemoteError, match="rank 1 failed: ValueError: out of the block"):
            exchange.all_reduce(np.zeros(1))
        return "told"

    outcomes = starting_over_gloo(2, work, tmp_path).outcomes()

    assert outcomes[0].unwrap() == "told"


@pytest.mark.slow
def test_a_killed_rank_is_named_on_all_others(tmp_path):
    are_ready, ready = os.pipe()

    def work(exchange):
        engine = make_engine(exchange)
        train(engine, 2)
        if exchange.rank == 1:
            os.write(ready, b"!")
        with pytest.raises(PeerLost) as raised:
            train(engine, 1_000_000)
        with pytest.raises(PeerLost):  # for ever
            exchange.all_reduce(np.zeros(1))
        return [raised.value.peer, str(raised.value)]

    ranks = starting_over_gloo(4, work, tmp_path)
    os.read(are_ready, 1)
    ranks.kill(1)
    found = [outcome.unwrap() for outcome in ranks.outcomes()]

    assert [peer for peer, _ in found] == [1, 1, 1]
    assert all(words.startswith("rank 1 of 4 was lost during ") for _, words in found)


@pytest.mark.slow
def test_a_rank_that_does_nothing_is_named_when_the_time_is_over(tmp_path):
    is_over, over = os.pipe()

    def work(exchange):
        if exchange.rank == 1:
            os.close(over)
            os.read(is_over, 1)  # returns when rank 0 has ended
            return "late"
        with pytest.raises(DeadlineExceeded) as raised:
            exchange.all_reduce(np.zeros(1))
        return [raised.value.peer, str(raised.value)]

    ranks = starting_over_gloo(2, work, tmp_path, timeout_s=0.5)
    os.close(over)
    (peer, words), late = [outcome.unwrap() for outcome in ranks.outcomes()]

    assert (peer, late) == (1, "late")
    assert words.startswith("rank 1 of 2 was lost during an all_reduce (it took longer than 0.5 s); a torch group")


def test_a_part_of_the_ranks_is_a_group_too(tmp_path):
    def work(exchange):
        subgroup = dist.new_group([1, 2])
        if exchange.rank == 0:
            with pytest.raises(ConfigError, match="this process is not in that"):
                TorchExchange(subgroup)
            return "outside"
        with TorchExchange(subgroup) as inner:
            return [inner.rank, *inner.all_gather(np.array([exchange.rank])).ravel().tolist()]

    assert over_gloo(3, work, tmp_path) == ["outside", [0, 1, 2], [1, 1, 2]]


def test_what_needs_our_own_transports_is_refused(tmp_path):
    def work(exchange):
        for option in ("zero", "paranoid"):
            with pytest.raises(ConfigError, match="only ranks of our own transports can"):
                make_engine(exchange, **{option: True})
        with pytest.raises(ConfigError, match="1 lanes are too few for 2 workers"):
            TorchExchange(lanes=1)
        return "refused"

    assert over_gloo(2, work, tmp_path) == ["refused"] * 2


def test_without_a_group_the_error_says_how_to_make_one():
    with pytest.raises(ConfigError, match=r"call torch.distributed.init_process_group, .* torchrun, srun or mpirun"):
        TorchExchange()

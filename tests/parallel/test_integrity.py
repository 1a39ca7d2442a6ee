"""A paranoid engine finds bits that a fault of a machine has changed, and changes no bit itself."""

import numpy as np
import pytest
from engine_play import digest_of, make_engine, run, train
from spread import of_all, spread

from phalanx.errors import ConfigError, GradientCorrupted
from phalanx.parallel import StarExchange


@pytest.fixture(scope="module")
def trusting():
    return run(1, clip=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "over", "options"),
    [
        (1, "arena", {}),
        (3, "arena", {}),
        (3, "tcp", {}),
        (3, "arena", {"zero": True}),
        pytest.param(3, "tcp", {"zero": True}, marks=pytest.mark.slow),
    ],
)
def test_a_healthy_run_has_the_same_bits_and_no_alarm(size, over, options, trusting):
    assert run(size, over, clip=0.5, paranoid=True, **options) == trusting


def test_ranks_on_two_hosts_get_the_same(trusting):
    def work(group):
        engine = make_engine(group, clip=0.5, paranoid=True)
        reports = train(engine, 6)
        return f"{[(each.loss.hex(), each.norm.hex()) for each in reports]} {digest_of(engine)}"

    assert of_all(spread(3, work, hosts=["a", "a", "b"])) == trusting


def flip(array):
    array.view(np.uint32)[..., :1] ^= 1 << 22


def own_sums(engine, group):
    """The first chunk of the first bucket that this rank adds up."""
    bucket, memory = engine._exchange.reducer.layout.buckets[0], engine._exchange.reducer._memory[0]
    number = min(engine._exchange.reducer._added_here[0])
    return memory.host_mean[bucket.chunks[number]]


def disturb_exchange(engine, group, *, before=lambda _: None, after=lambda: None):
    """Let these run in the exchange's thread before and after the first bucket is added up, in every step."""
    name = "scatter_lanes_nowait" if engine._replica.shard[1] > 1 else "fold_lanes_nowait"
    call, mean = getattr(group, name), engine._exchange.reducer._memory[0].host_mean

    def disturbed(pieces, out, **options):
        if out is not mean:
            return call(pieces, out, **options)
        group.enqueue("a cosmic ray", before, pieces)
        pending = call(pieces, out, **options)
        group.enqueue("a cosmic ray", after)
        return pending

    setattr(group, name, disturbed)


def flip_piece(engine, group):
    disturb_exchange(engine, group, before=flip)


def flip_result(engine, group):
    disturb_exchange(engine, group, after=lambda: flip(own_sums(engine, group)))


def flip_mean(engine, group):
    finish = engine._exchange.reducer.finish

    def disturbed():
        summary = finish()
        flip(own_sums(engine, group))
        return summary

    engine._exchange.reducer.finish = disturbed


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(
    ("disturb", "words"),
    [
        (flip_piece, "changed in the memory of rank 1"),
        (flip_result, "with different results"),
        (flip_mean, "changed in the memory that rank"),
    ],
)
def test_a_flipped_bit_halts_everybody_before_weights_change(disturb, words, zero):
    def work(group):
        engine = make_engine(group, paranoid=True, zero=zero)
        train(engine, 1)
        before = digest_of(engine)
        if group.rank == 1:
            disturb(engine, group)
        with pytest.raises(GradientCorrupted, match=words) as caught:
            train(engine, 2)
        assert engine.step_number < 3
        assert engine.step_number == 2 or digest_of(engine) == before
        return str(caught.value), caught.value.rank, engine.step_number

    found, rank, _ = of_all(spread(3, work))

    assert rank is None if disturb is flip_result else rank in range(3)
    assert "weights are those before this step" in found


@pytest.mark.parametrize("disturb", [flip_piece, flip_result, flip_mean])
def test_without_these_checks_all_ranks_agree_on_wrong_weights(disturb):
    """Else docs/security.md would say too little of what is found."""

    def work(group, *, is_disturbed):
        engine = make_engine(group)
        if is_disturbed and group.rank == 1:
            disturb(engine, group)
        train(engine, 2)
        return digest_of(engine)

    assert of_all(spread(3, lambda group: work(group, is_disturbed=True))) != of_all(
        spread(3, lambda group: work(group, is_disturbed=False))
    )


def test_workers_that_can_only_call_out_are_refused():
    class Lonely(StarExchange):
        def __init__(self):
            self.rank, self.size, self.lanes = 0, 2, 8

    with pytest.raises(ConfigError, match="only ranks of our own transports"):
        make_engine(Lonely(), paranoid=True)

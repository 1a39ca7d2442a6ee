"""Samplers that know the group."""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import phalanx
from phalanx.data import LaneSampler, RankSampler, samples_of
from phalanx.errors import ConfigError


def member(rank, size, lanes=None):
    """What a sampler looks at in a group."""
    return SimpleNamespace(rank=rank, size=size, lanes=lanes)


def samplers(length, size, **options):
    return [RankSampler(length, member(rank, size), **options) for rank in range(size)]


@given(length=st.integers(1, 60), size=st.integers(1, 5), seed=st.integers(0, 9))
def test_ranks_get_every_sample_and_equally_many(length, size, seed):
    drawn = [list(each) for each in samplers(length, size, seed=seed)]

    assert {len(each) for each in drawn} == {-(-length // size)} == {len(each) for each in samplers(length, size)}
    counts = Counter(sample for each in drawn for sample in each)
    assert counts.keys() == set(range(length))
    assert sum(counts.values()) < length + size


@given(length=st.integers(1, 60), size=st.integers(1, 5))
def test_with_drop_last_no_sample_comes_twice(length, size):
    drawn = [sample for each in samplers(length, size, drop_last=True) for sample in each]

    assert len(drawn) == len(set(drawn)) == length // size * size


def test_passes_and_seeds_have_orders_of_their_own_unless_nobody_shuffles():
    def order(seed, number, *, shuffle=True):
        sampler = RankSampler(range(50), member(0, 1), seed=seed, shuffle=shuffle)
        sampler.set_epoch(number)
        return tuple(sampler)

    assert len({order(0, 0), order(0, 1), order(1, 0), tuple(range(50))}) == 4
    assert order(0, 3, shuffle=False) == tuple(range(50))


def test_a_pass_that_was_left_in_the_middle_continues_with_other_ranks_and_every_sample_comes_once():
    first = samplers(30, 3)
    used = [sample for each in first for sample, _ in zip(each, range(4), strict=False)]
    for each in first:
        each.advance(3)
        each.advance(1)

    second = samplers(30, 2)
    for each in second:
        each.load_state_dict(first[0].state_dict())
        each.set_epoch(0)  # the pass that goes on anyway
    used += [sample for each in second for sample in each]

    assert sorted(used) == list(range(30))


def test_a_group_that_changes_is_followed():
    group = member(1, 3)
    sampler = RankSampler(30, group, shuffle=False)
    before = [sample for sample, _ in zip(sampler, range(2), strict=False)]
    sampler.advance(2)

    group.rank, group.size = 0, 2

    assert before == [1, 4]
    assert list(sampler) == list(range(6, 30, 2))


def test_behind_the_last_sample_the_next_pass_begins():
    sampler = RankSampler(10, member(0, 4))
    sampler.advance(2)
    sampler.advance(1)  # two of its samples came again

    assert sampler.state_dict() == {"pass": 1, "position": 0}
    with pytest.raises(ConfigError, match="3 samples are left for each rank in this pass, not 4"):
        sampler.advance(4)


def test_a_position_of_other_data_is_refused():
    with pytest.raises(ConfigError, match="position 10 is not within 10 samples"):
        RankSampler(10, member(0, 1)).load_state_dict({"pass": 0, "position": 10})
    with pytest.raises(ConfigError, match="at least one sample"):
        RankSampler([], member(0, 1))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_ranks_iterate_over_the_lanes_of_each_step(size):
    expected = [samples_of(step, lane, lanes=4, batch=10, length=33, seed=5) for step in range(6) for lane in range(4)]
    drawn = {}
    for rank in range(size):
        sampler = LaneSampler(range(33), member(rank, size, lanes=4), batch=10, seed=5)
        sampler.load_state_dict({"step": 1})
        sampler.advance()
        own = [lane for lane in range(4) if (lane * size) // 4 == rank] if size != 3 else [[0, 1], [2], [3]][rank]
        for (step, lane), samples in zip(((s, lane) for s in range(2, 6) for lane in own), sampler, strict=False):
            drawn[step, lane] = tuple(samples)
            assert sampler.samples(step, lane) == tuple(samples)

    assert [drawn[key] for key in sorted(drawn)] == expected[8:]


def test_lanes_need_a_group_that_takes_steps_and_a_sample_each():
    with pytest.raises(ConfigError, match="takes no steps"):
        LaneSampler(10, member(0, 1), batch=4)
    with pytest.raises(ConfigError, match="too small for 4 lanes"):
        LaneSampler(10, member(0, 1, lanes=4), batch=3)


def test_the_group_of_a_run_whose_members_change_is_asked_for():
    with phalanx.join_run(lanes=4) as run:
        lanes, ranks = LaneSampler(33, run, batch=8), RankSampler(33, run)

        assert next(iter(lanes)) == list(lanes.samples(0, 0))
        assert len(ranks) == 33


def test_torchs_loader_takes_both():
    torch = pytest.importorskip("torch")
    rows = torch.arange(12)
    ranks = torch.utils.data.DataLoader(rows, batch_size=3, sampler=RankSampler(rows, member(0, 2), shuffle=False))
    lanes = torch.utils.data.DataLoader(rows, batch_sampler=LaneSampler(rows, member(1, 2, lanes=4), batch=8))

    assert [batch.tolist() for batch in ranks] == [[0, 2, 4], [6, 8, 10]]
    assert len(ranks) == 2
    first = next(iter(lanes)).tolist()
    assert first == list(samples_of(0, 2, lanes=4, batch=8, length=12, seed=0))

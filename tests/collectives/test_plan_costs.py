"""Rounds and elements are those the docstrings claim, and ``simulate``, which counts them, can fail."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from phalanx.buffers import DType, even_parts
from phalanx.collectives import direct, pair, ring, star, tree
from phalanx.collectives.plan import Plan, Receive, Round, Send, Then, length_of
from phalanx.testing.simulate import PlanError, simulate

SIZES = range(1, 10)


def buffers(size, length):
    return list(np.arange(size * length).reshape(size, length))


def ceil_log2(size):
    return next(exponent for exponent in range(size) if 2**exponent >= size)


def claims(size, root, length):
    """Each docstring's words: the plans of all ranks, the rounds, and the elements that each rank sends."""
    parts = even_parts(length, size)
    own = [length_of(part) for part in parts]
    following = own[1:] + own[:1]
    depth, others = ceil_log2(size), size - 1

    def cut(function):
        return [function(rank, parts) for rank in range(size)]

    def rooted(function):
        return [function(rank, root, parts) for rank in range(size)]

    def whole(function):
        return [function(rank, size, root, length) for rank in range(size)]

    def by(root_sends, other_sends):
        return [root_sends if rank == root else other_sends for rank in range(size)]

    yield cut(ring.all_reduce), 2 * others, [2 * length - own[rank] - following[rank] for rank in range(size)]
    yield cut(ring.reduce_scatter), others, [length - mine for mine in own]
    yield cut(ring.all_gather), others, [length - theirs for theirs in following]
    yield cut(direct.all_reduce), 2, [length - mine + others * mine for mine in own]
    yield cut(direct.reduce_scatter), 1, [length - mine for mine in own]
    yield cut(direct.all_gather), 1, [others * mine for mine in own]
    yield [direct.all_to_all(rank, parts, parts) for rank in range(size)], 1, [length - mine for mine in own]
    yield rooted(direct.reduce), 2, by(length - own[root], length)
    yield rooted(direct.gather), 1, [0 if rank == root else own[rank] for rank in range(size)]
    yield rooted(direct.scatter), 1, by(length - own[root], 0)
    yield [direct.barrier(rank, size) for rank in range(size)], 1, [0] * size
    yield [tree.barrier(rank, size) for rank in range(size)], 2 * depth, [0] * size
    yield whole(tree.reduce), depth + (root != 0), [length if rank or root else 0 for rank in range(size)]
    yield whole(star.all_reduce), 2, by(others * length, length)
    yield whole(star.reduce), 1, by(0, length)
    yield whole(star.broadcast), 1, by(others * length, 0)
    if size == 2:
        yield [pair.all_reduce(rank, length) for rank in range(size)], 1, [length] * size


@pytest.mark.parametrize("size", SIZES)
def test_rounds_and_elements_are_what_the_docstrings_claim(size):
    for root, multiple in product(range(size), range(3)):
        length = multiple * size  # even parts, so that an all-to-all can use them on both sides
        for plans, rounds, elements in claims(size, root, length):
            targets = buffers(size, length)

            counts = simulate(plans, buffers(size, length), dtype=DType.I64, targets=targets)

            assert counts.rounds == rounds, plans[0]
            assert list(counts.elements_sent) == elements, plans[0]
            assert [plan.elements_sent for plan in plans] == elements


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("length", [1, 7, 13])
def test_uneven_parts_cost_what_they_are_long(size, length):
    parts = even_parts(length, size)
    own = [length_of(part) for part in parts]
    following = own[1:] + own[:1]

    around = [ring.all_reduce(rank, parts).elements_sent for rank in range(size)]
    straight = [direct.all_reduce(rank, parts).elements_sent for rank in range(size)]

    assert around == [2 * length - mine - theirs for mine, theirs in zip(own, following, strict=True)]
    assert straight == [length + (size - 2) * mine for mine in own]


@pytest.mark.parametrize("size", SIZES)
def test_a_tree_spreads_its_messages_as_its_docstrings_claim(size):
    depth = ceil_log2(size)
    both = simulate([tree.all_reduce(rank, size, 7) for rank in range(size)], buffers(size, 7), dtype=DType.I64)

    for root in range(size):
        plans = [tree.broadcast(rank, size, root, 7) for rank in range(size)]
        down = simulate(plans, buffers(size, 7), dtype=DType.I64)

        assert down.rounds == depth
        assert down.elements_sent[root] == 7 * depth
        assert sum(down.elements_sent) == 7 * (size - 1)

    assert both.rounds == 2 * depth
    assert sum(both.elements_sent) == 7 * 2 * (size - 1)
    assert max(both.elements_sent) <= 7 * depth


def every_plan(size):
    yield from (plans for plans, _, _ in claims(size, root=1, length=2 * size))
    yield [tree.all_reduce(rank, size, 7) for rank in range(size)]
    yield [tree.broadcast(rank, size, 1, 7) for rank in range(size)]


def changed(plans, rank, index, **fields):
    """The plans, with other fields in one round of one rank."""
    rounds = list(plans[rank].rounds)
    rounds[index] = replace(rounds[index], **fields)
    return [*plans[:rank], Plan(tuple(rounds)), *plans[rank + 1 :]]


def with_one_message_missing(plans):
    for rank, plan in enumerate(plans):
        for index, each in enumerate(plan.rounds):
            for position in range(len(each.sends)):
                yield changed(plans, rank, index, sends=each.sends[:position] + each.sends[position + 1 :])
            for position in range(len(each.receives)):
                yield changed(plans, rank, index, receives=each.receives[:position] + each.receives[position + 1 :])


@pytest.mark.parametrize("size", [2, 3, 5])
def test_no_message_of_any_plan_can_be_left_out_unnoticed(size):
    wrong = [plans for right in every_plan(size) for plans in with_one_message_missing(right)]

    for plans in wrong:
        with pytest.raises(PlanError, match=r"never (reads|sends)"):
            simulate(plans, buffers(size, 13), dtype=DType.I64, targets=buffers(size, 13))

    assert wrong


def test_a_swapped_part_of_another_length_is_refused():
    plans = [ring.all_reduce(rank, even_parts(7, 3)) for rank in range(3)]
    swapped = changed(plans, 0, 0, receives=(Receive(2, slice(0, 3), Then.FOLD),))

    with pytest.raises(PlanError, match=r"round 0, rank 0: fold \[0:3\] from rank 2, which sends 2 elements"):
        simulate(swapped, buffers(3, 7), dtype=DType.I64)


def test_a_swapped_part_of_equal_length_shows_in_the_result():
    first, second, third = even_parts(6, 3)
    right = [direct.all_reduce(rank, (first, second, third)) for rank in range(3)]
    swapped = [*right[:2], direct.all_reduce(2, (second, first, third))]
    results = buffers(3, 6)
    expected = np.sum(results, axis=0)

    simulate(swapped, results, dtype=DType.I64)

    assert (np.asarray(results) != expected).any()


@pytest.mark.parametrize(
    ("plans", "words"),
    [
        ([Plan((Round(),)), Plan()], r"disagree on the number of rounds: \[1, 0\]"),
        ([Plan((Round(sends=(Send(1, slice(0, 9)),)),)), Plan((Round(),))], "but it has 4 elements"),
        ([Plan((Round(sends=(Send(2, slice(0, 1)),)),)), Plan((Round(),))], "rank 2 never reads"),
        (
            [Plan((Round((Send(peer, slice(0, 4)),), (Receive(peer, slice(0, 4)),)),)) for peer in (1, 0)],
            r"store \[0:4\] from rank 1 spoils send \[0:4\] to rank 1",
        ),
        (
            [Plan((Round(receives=(Receive(1, slice(0, 2)), Receive(2, slice(1, 4), Then.FOLD))),))] * 2,
            r"store \[0:2\] from rank 1 spoils fold \[1:4\] from rank 2",
        ),
    ],
)
def test_plans_that_do_not_fit_together_are_refused_in_words(plans, words):
    with pytest.raises(PlanError, match=words):
        simulate(plans, buffers(2, 4), dtype=DType.I64)

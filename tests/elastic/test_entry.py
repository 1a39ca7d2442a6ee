"""What the members of an epoch do to enter it, and in which order."""

from phalanx.elastic import (
    Compare,
    CopyWeights,
    Follow,
    Form,
    HandOver,
    Hold,
    Learn,
    Settle,
    Stance,
    StartAlike,
    cut_copy,
    find_lost_state,
    plan_entry,
)

SIZES = [4, 4, 4]
ALL = (0, 1, 2)


def stance(step=7, *, is_new=False, pieces=(), held=ALL, is_whole=True, is_sharing=False):
    return Stance(step, is_new, (), tuple(pieces), tuple(held), is_whole, is_sharing)


def plan(rank, *stances):
    return plan_entry(rank, stances, SIZES, [range(len(stances))], 8)


def kinds(moves):
    return [type(move) for move in moves]


def shares_in(moves):
    return next(move.shares.by_rank for move in moves if isinstance(move, Form))


def test_the_first_members_begin_with_the_weights_of_rank_0():
    moves = plan(1, *[stance(0, is_new=True)] * 2)

    assert kinds(moves) == [StartAlike, Settle, HandOver, Learn, Form, Hold]


def test_a_newcomer_follows_only_when_all_that_it_needs_has_arrived_and_drops_nothing_before_all_have_compared():
    moves = plan(2, stance(), stance(), stance(0, is_new=True))

    assert kinds(moves) == [CopyWeights, HandOver, Follow, Learn, Form, Compare, Hold]
    assert [each.target for each in moves[1].handovers] == [2, 2, 2]
    assert moves[3].blocks == ALL


def test_members_that_share_the_optimizer_compare_also_if_nobody_is_new():
    members = [stance(is_sharing=True)] * 3

    assert kinds(plan(0, *members)) == [Settle, HandOver, Learn, Form, Compare, Hold]


def test_weights_travel_with_the_state_if_a_member_lacks_some():
    moves = plan(0, stance(is_whole=False, held=(0, 1)), stance(held=(1, 2)))

    assert [move.is_whole for move in moves if isinstance(move, HandOver | Form)] == [False, False]


def test_what_a_newcomer_lacks_does_not_matter():
    moves = plan(0, stance(), stance(3, is_whole=False))

    assert [move.is_whole for move in moves if isinstance(move, HandOver | Form)] == [True, True]


def test_members_keep_the_sums_of_the_present_step_and_not_those_of_an_older_one():
    moves = plan(0, stance(pieces=[(4, 8)]), stance(6, pieces=[(0, 4)]))

    assert shares_in(moves) == ((4, 5, 6, 7), (0, 1, 2, 3))
    assert shares_in(plan(0, stance(), stance(6, pieces=[(0, 4)]))) == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_state_that_only_a_member_of_an_older_step_or_a_new_one_has_is_lost():
    stances = [stance(held=(0,)), stance(6, held=ALL), stance(is_new=True, held=ALL)]

    assert find_lost_state(stances, 3) == [1, 2]


def test_holders_send_even_parts_that_make_up_the_whole():
    assert cut_copy(10, (0, 2, 3)) == {0: slice(0, 4), 2: slice(4, 7), 3: slice(7, 10)}

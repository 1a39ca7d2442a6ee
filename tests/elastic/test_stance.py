"""Who gives and who gets the state at the start of an epoch."""

import pytest

from phalanx.elastic import Roles, Stance, check_sharing, choose_roles
from phalanx.errors import ConfigError


def stance(step, *, is_new=False, results=(), is_sharing=False):
    return Stance(step, is_new, tuple(results), (), (), True, is_sharing)


@pytest.mark.parametrize(
    ("stances", "roles"),
    [
        ([stance(0, is_new=True)] * 2, Roles((0, 1), 0, (), is_first=True)),
        ([stance(7), stance(7)], Roles((0, 1), 0, (), is_first=False)),
        ([stance(7), stance(0, is_new=True)], Roles((0,), 0, (1,), is_first=False)),
        ([stance(0, is_new=True), stance(0)], Roles((1,), 1, (0,), is_first=False)),
        ([stance(7, is_new=True), stance(0, is_new=True)], Roles((0,), 0, (1,), is_first=True)),
        ([stance(7), stance(7, results=[0.5]), stance(6, results=[1.0, 2.0])], Roles((0, 1), 1, (2,), is_first=False)),
    ],
    ids=["all are new", "all go on", "a newcomer", "a new rank 0", "some have a checkpoint", "one knows more"],
)
def test_the_members_with_the_latest_state_give_it_to_the_others(stances, roles):
    assert choose_roles(stances) == roles


def test_a_member_that_shares_no_optimizer_while_others_do_is_named():
    stances = [stance(7, is_sharing=True), stance(0), stance(7, is_sharing=True)]

    with pytest.raises(
        ConfigError, match="rank 0 has zero=True, where rank 1 has zero=False: give all workers the same"
    ):
        check_sharing(stances, 0)

"""Failures on purpose: reading what is wanted, and planning it."""

from collections import Counter

import pytest

from phalanx.errors import ConfigError
from phalanx.launch.chaos import DESCRIPTIONS, Mishap, Strike, choose_host, choose_worker, parse_chaos, plan_strikes


def test_what_is_wanted_is_read():
    assert parse_chaos("kill=20, stop=5,coordinator=0") == {Mishap.KILL: 20, Mishap.STOP: 5, Mishap.COORDINATOR: 0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is no mishap '' in --chaos ''"),
        ("kil=3", "there is no mishap 'kil' in --chaos 'kil=3': name some of kill, stop, segfault, cut, hang, host"),
        ("kill", "as in kill=20,stop=5, with numbers up to 100,000, not 'kill'"),
        ("kill=-1", "not 'kill=-1'"),
        ("kill=1.5", "not 'kill=1.5'"),
        ("kill=100001", "not 'kill=100001'"),
        ("kill=1,kill=2", "names kill twice"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(text, words):
    with pytest.raises(ConfigError) as caught:
        parse_chaos(text)

    assert words in str(caught.value)


def test_every_mishap_is_described():
    assert set(DESCRIPTIONS) == set(Mishap)


def test_a_seed_decides_all():
    counts = {Mishap.KILL: 30, Mishap.STOP: 5}

    plans = [plan_strikes(counts, 200, seed) for seed in (7, 7, 8)]

    assert plans[0] == plans[1] != plans[2]
    assert Counter(each.mishap for each in plans[0]) == counts
    assert plans[0] == sorted(plans[0], key=lambda each: (each.step, each.moment))
    assert all(1 <= each.step < 199 for each in plans[0])


def test_a_short_run_has_its_mishaps_too():
    assert [each.step for each in plan_strikes({Mishap.KILL: 2}, 1, 0)] == [1, 1]


@pytest.mark.parametrize(("choice", "worker"), [(0.0, 3), (0.5, 5), (0.99, 9)])
def test_the_choice_picks_a_worker(choice, worker):
    assert choose_worker(Strike(1, 0.5, Mishap.KILL, choice), [[9, 3], [5]], holders=[3, 5]) == worker


@pytest.mark.parametrize("holders", [[], [3]])
def test_nobody_is_hit_who_may_be_the_last_with_the_state(holders):
    assert choose_worker(Strike(1, 0.5, Mishap.KILL, 0.0), [[3, 5]], holders) is None


@pytest.mark.parametrize(("hosts", "worker"), [([[3, 5]], 3), ([[3, 5], [7]], 7), ([[3, 5], []], None)])
def test_a_worker_leaves_only_a_host_that_another_one_can_join(hosts, worker):
    assert choose_worker(Strike(1, 0.5, Mishap.JOIN, 0.0), hosts, holders=[3, 5, 7]) == worker


@pytest.mark.parametrize(
    ("mishap", "hosts", "holders", "host"),
    [
        (Mishap.HOST, [[3, 5]], [], 0),
        (Mishap.HOST, [[3], [5]], [5], 0),
        (Mishap.HOST, [[3], [5]], [3], 1),
        (Mishap.HOST, [[3], []], [3], None),
        (Mishap.PARTITION, [[3], [5]], [3, 5], 1),
        (Mishap.PARTITION, [[3], [5]], [5], None),
    ],
)
def test_a_host_is_hit_if_another_one_has_the_state(mishap, hosts, holders, host):
    assert choose_host(Strike(1, 0.5, mishap, 0.0), hosts, holders) == host

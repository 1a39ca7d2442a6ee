import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.bench.all_reduce.plan import (
    AllReduceSystem,
    baseline,
    cells,
    rows,
    schedule,
    slowest,
    task,
)
from phalanx.bench.text import format_size, format_time, parse_counts, parse_sizes, parse_systems
from phalanx.errors import ConfigError


def test_sizes_are_read_in_every_unit():
    assert parse_sizes("4B,4KiB, 3MiB,1GiB,12") == [4, 4096, 3 << 20, 1 << 30, 12]


@pytest.mark.parametrize("text", ["4XB", "", "4KiB,", "KiB", "-4KiB", "0B", "6B", "4kib", "4BB"])
def test_a_bad_size_is_refused(text):
    with pytest.raises(ConfigError):
        parse_sizes(text)


@given(st.integers(1, 2**40).map(lambda quarter: 4 * quarter))
def test_a_formatted_size_is_read_as_the_same_size(size):
    assert parse_sizes(format_size(size).replace(" ", "")) == [size]


def test_ranks_are_read_once_each():
    assert parse_counts("2,4,2") == [2, 4]


@pytest.mark.parametrize("text", ["0", "1", "-2", "two", "2,,4"])
def test_bad_ranks_are_refused(text):
    with pytest.raises(ConfigError):
        parse_counts(text)


def test_an_unknown_system_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"'nccl'.*arena.*openmpi"):
        parse_systems(AllReduceSystem, "arena,nccl")


@given(st.integers(1, 2**32).map(lambda quarter: 4 * quarter))
def test_longer_buffers_are_measured_less_often_but_never_once(size):
    short, long = task(size), task(2 * size)

    assert short.iterations >= long.iterations >= 5
    assert 2 <= short.warmup <= short.iterations


def test_every_system_measures_every_size_in_every_round():
    systems, sizes = [AllReduceSystem.ARENA, AllReduceSystem.TCP, AllReduceSystem.GLOO], [4096, 1 << 20]

    turns = [(number, task.bytes, system) for number, task, system in schedule(systems, sizes, 4)]

    assert sorted(turns, key=str) == sorted(itertools.product(range(4), sizes, systems), key=str)


def test_another_system_begins_each_round():
    systems = [AllReduceSystem.ARENA, AllReduceSystem.TCP, AllReduceSystem.GLOO]

    turns = [system for _, _, system in schedule(systems, [4096], 4)]

    assert turns[::3] == [AllReduceSystem.ARENA, AllReduceSystem.TCP, AllReduceSystem.GLOO, AllReduceSystem.ARENA]


def test_an_iteration_takes_as_long_as_its_slowest_rank():
    assert slowest([[1.0, 5.0], [2.0, 4.0]]) == [2.0, 5.0]


def test_a_row_has_the_median_its_bandwidths_and_the_ratio_to_gloo():
    seconds = {(4000, AllReduceSystem.ARENA): [1e-6, 2e-6, 9e-6], (4000, AllReduceSystem.GLOO): [8e-6]}

    arena, gloo = rows(4, seconds)

    assert (arena.system, arena.ranks, arena.bytes, arena.iterations) == ("arena", 4, 4000, 3)
    assert arena.median_s == 2e-6
    assert arena.algbw_gbps == pytest.approx(2.0)
    assert arena.busbw_gbps == pytest.approx(3.0)
    assert (arena.vs_gloo, gloo.vs_gloo) == (pytest.approx(4.0), 1.0)


def test_rows_are_grouped_by_size_in_the_order_of_systems():
    order = [
        (4096, AllReduceSystem.TCP),
        (8, AllReduceSystem.TCP),
        (4096, AllReduceSystem.ARENA),
        (8, AllReduceSystem.ARENA),
    ]

    table = rows(2, {key: [1.0] for key in order})

    assert [(row.bytes, row.system) for row in table] == [(8, "tcp"), (8, "arena"), (4096, "tcp"), (4096, "arena")]


def test_without_gloo_the_table_compares_with_the_slowest_of_each_size():
    table = rows(
        2, {(8, AllReduceSystem.TCP): [2.0], (8, AllReduceSystem.ARENA): [0.5], (16, AllReduceSystem.TCP): [9.0]}
    )

    assert baseline(table) == "slowest"
    assert [cells(row, table)[-1] for row in table] == ["1.00x", "4.00x", "1.00x"]
    assert all(row.vs_gloo is None for row in table)


def test_a_line_of_the_table_has_three_digits_that_count():
    table = rows(2, {(64 << 20, AllReduceSystem.GLOO): [0.0625], (4096, AllReduceSystem.TCP): [0.002]})

    assert cells(table[1], table) == ("64 MiB", "gloo", "62.5 ms", "1.07", "1.07", "1.00x")
    assert cells(table[0], table) == ("4 KiB", "tcp", "2.00 ms", "0.00205", "0.00205", "1.00x")


@pytest.mark.parametrize(
    ("seconds", "words"), [(3.8e-6, "3.80 µs"), (0.000999, "999 µs"), (0.001, "1.00 ms"), (1.234, "1.23 s")]
)
def test_times_are_written_in_the_unit_that_suits(seconds, words):
    assert format_time(seconds) == words

import pytest
from doctor_facts import WELL, introduce

from phalanx.doctor import Level
from phalanx.doctor.facts import GpuFacts, MeasuredWay, Setting, TorchBuild
from phalanx.doctor.judge_machines import judge_machines, name_machines

FAST = MeasuredWay("", 1e9, 0.0002)


def ways(count, **changed):
    """Fast ways between all machines, but for some, as in ``from_0_to_1``."""
    found = {(one, other): FAST for one in range(count) for other in range(count) if one != other}
    for name, way in changed.items():
        _, one, _, other = name.split("_")
        found[int(one), int(other)] = way
    return found


def bad(introductions, measured=None, **more):
    measured = ways(len(introductions)) if measured is None else measured
    findings = judge_machines(introductions, measured, own=0, **more)
    return [(each.level, each.about, str(each)) for each in findings if each.level is not Level.GOOD]


def test_machines_that_are_alike_have_only_good_findings_and_every_pair_is_listed():
    findings = judge_machines([introduce(name) for name in "abc"], ways(3), own=0)

    assert {each.level for each in findings} == {Level.GOOD}
    assert [str(each) for each in findings if each.about == "connection"] == [
        f"{pair}: 1.00 Gbit/s there, 1.00 Gbit/s back, round trip 0.20 ms" for pair in ("a and b", "a and c", "b and c")
    ]


@pytest.mark.parametrize(
    ("level", "what", "words", "changed"),
    [
        (
            Level.PROBLEM,
            "torch",
            "2.13.0+cpu (cf30153c4c) on a, c; 2.12.0+cu126 (0123456789) on b",
            {"torch": TorchBuild("2.12.0+cu126", "0123456789ab", "12.6", "AVX2")},
        ),
        (Level.PROBLEM, "torch", "not installed on b", {"torch": None}),
        (Level.PROBLEM, "phalanx", "0.1.0 on a, c; 0.2.0 on b", {"phalanx": "0.2.0"}),
        (Level.PROBLEM, "device", "CPU on a, c; GPU on b", {"gpus": GpuFacts(("H200",), 1 << 37)}),
        (Level.WARNING, "Python", "3.11 on a, c; 3.13 on b", {"python": "3.13.1"}),
        (Level.WARNING, "numpy", "2.4.6 on a, c; 2.0.0 on b", {"numpy": "2.0.0"}),
        (Level.WARNING, "CPU", "EPYC, AVX2 on a, c; Xeon, AVX2 on b", {"processor": "Xeon"}),
        (Level.WARNING, "threads", "OMP_NUM_THREADS=2 on b", {"settings": (Setting("OMP_NUM_THREADS", "2"),)}),
    ],
)
def test_what_differs_is_named_with_both_sides(level, what, words, changed):
    found = bad([introduce("a"), introduce("b", **changed), introduce("c")])

    assert any((each, about) == (level, what) and words in text for each, about, text in found)


def test_another_patch_of_python_is_no_difference():
    assert bad([introduce("a"), introduce("b", python="3.11.9")]) == []


def test_what_is_wrong_with_another_machine_is_told_here_too_and_the_own_is_not_repeated():
    ((level, about, words),) = bad([introduce("a", open_files=64), introduce("b", open_files=64)])

    assert (level, about) == (Level.PROBLEM, "open files")
    assert words.startswith("on b, a process may have 64 files open")


@pytest.mark.parametrize(
    ("offset_s", "level", "words"),
    [
        (60.0, Level.PROBLEM, "the clock of b is 60.0 s behind the coordinator's"),
        (-60.0, Level.PROBLEM, "the clock of b is 60.0 s ahead of the coordinator's"),
        (2.0, Level.WARNING, "the clock of b is 2.0 s behind the coordinator's"),
    ],
)
def test_a_clock_that_is_off_is_named(offset_s, level, words):
    ((found_level, about, found),) = bad([introduce("a"), introduce("b", offset_s=offset_s)])

    assert (found_level, about) == (level, "clock")
    assert found.startswith(words)


def test_a_clock_may_be_off_by_as_much_as_the_measurement_is():
    assert bad([introduce("a"), introduce("b", offset_s=2.0, error_s=1.5)]) == []


def test_a_way_that_is_closed_in_one_direction_names_it_and_the_ports_to_open():
    found = bad([introduce("a"), introduce("b")], ways(2, from_1_to_0=MeasuredWay("10.0.0.1:40000: timed out")))

    ((level, about, words),) = found
    assert (level, about) == (Level.PROBLEM, "connection")
    assert words.startswith("b cannot connect to a: 10.0.0.1:40000: timed out: let a accept TCP connections from b to ")
    assert WELL.port_range in words


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (MeasuredWay("", 50e6, 0.0002), "100 million f32 gradients take 64 s"),
        (MeasuredWay("", 200e6, 0.0002), "5 times slower than the usual"),
        (MeasuredWay("", 1e9, 0.05), "round trip 50.00 ms"),
    ],
)
def test_a_way_that_is_slow_is_a_warning(way, words):
    ((level, about, found),) = bad([introduce(name) for name in "abc"], ways(3, from_0_to_2=way))

    assert (level, about) == (Level.WARNING, "connection")
    assert found.startswith("a and c: ")
    assert words in found


def test_a_machine_that_did_not_finish_is_named_and_its_ways_were_not_measured():
    measured = {pair: way for pair, way in ways(2).items() if pair != (1, 0)}

    found = bad([introduce("a"), introduce("b")], measured, late=["b"])

    assert [words for *_, words in found] == [
        "the way from b to a was not measured: check again",
        "b did not finish the check: look there: was it stopped, or is it gone?",
    ]


def test_machines_of_the_same_name_are_told_apart_by_address_or_port():
    introductions = [introduce("a"), introduce("b"), introduce("b", "10.0.0.2"), introduce("b", "10.0.0.2", 4)]

    assert name_machines(introductions) == ["a", "b (10.0.0.1)", "b (10.0.0.2:40000)", "b (10.0.0.2:4)"]

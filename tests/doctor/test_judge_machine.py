import pytest
from doctor_facts import GIB, WELL
from msgspec.structs import replace

from phalanx.doctor import Level, judge_machine
from phalanx.doctor.facts import GpuFacts, PortCheck, Setting, TorchBuild, VolumeFacts

SHM = "/dev/shm"  # noqa: S108 - it is what the doctor looks at
CUDA = TorchBuild("2.13.0+cu130", "cf30153c4c", "13.0", "AVX2")


def bad(**changed):
    """The findings about a machine that is not well in this respect, good ones left out: level, subject and words."""
    findings = judge_machine(replace(WELL, **changed))
    return [(each.level, each.about, str(each)) for each in findings if each.level is not Level.GOOD]


def test_a_machine_that_is_well_has_only_good_findings():
    findings = judge_machine(WELL)

    assert {each.level for each in findings} == {Level.GOOD}
    about = ["versions", "torch", "CPUs", "threads", "memory", "shared memory", "shm", "open files", "ports"]
    assert [each.about for each in findings] == [*about, "disk", "disk", "clock"]


@pytest.mark.parametrize(
    ("level", "about", "words", "changed"),
    [
        (Level.WARNING, "torch", "pip install 'phalanx-train[train]'", {"torch": None}),
        (Level.WARNING, "GPU", "is a build without CUDA", {"gpus": GpuFacts(has_nvidia=True)}),
        (Level.WARNING, "GPU", "cannot use it", {"gpus": GpuFacts(has_nvidia=True), "torch": CUDA}),
        (Level.WARNING, "GPU", "0 and 1", {"gpus": GpuFacts(("H200",) * 2, GIB, ((0, 1),), has_nvidia=True)}),
        (Level.WARNING, "CPUs", "1 of 8 CPUs", {"usable_cpus": 1}),
        (Level.WARNING, "threads", "unset OMP_NUM_THREADS", {"settings": (Setting("OMP_NUM_THREADS", "9"),)}),
        (Level.WARNING, "threads", "no number", {"settings": (Setting("MKL_NUM_THREADS", "all"),)}),
        (Level.PROBLEM, "memory", "free", {"memory_free_bytes": GIB // 4}),
        (Level.WARNING, "memory", "this container may use 1.0 GiB", {"memory_limit_bytes": GIB}),
        (Level.PROBLEM, "shared memory", "they will use TCP", {"memory_sharing_fault": "no /proc"}),
        (Level.PROBLEM, "shm", "Read-only file system", {"shm": VolumeFacts(SHM, fault="Read-only file system")}),
        (Level.PROBLEM, "shm", "64 KiB free", {"shm": VolumeFacts(SHM, "tmpfs", 65536)}),
        (Level.WARNING, "shm", "--shm-size=1g", {"shm": VolumeFacts(SHM, "tmpfs", 64 << 20)}),
        (Level.PROBLEM, "open files", "`ulimit -n 4096`", {"open_files": 64}),
        (Level.PROBLEM, "open files", "hard limit, which is 64", {"open_files": 64, "most_open_files": 64}),
        (Level.WARNING, "open files", "`ulimit -n 4096`", {"open_files": 1000}),
        (Level.PROBLEM, "ports", "at 10.0.0.1: refused", {"ports": (PortCheck("10.0.0.1", "refused"),)}),
        (Level.PROBLEM, "disk", "No space left", {"disk": VolumeFacts("/data", fault="No space left on device")}),
        (Level.PROBLEM, "disk", "make room", {"disk": VolumeFacts("/data", "ext4", GIB // 2, 1e9, 0.0)}),
        (Level.WARNING, "disk", "make room", {"disk": VolumeFacts("/data", "ext4", 2 * GIB, 1e9, 0.0)}),
        (Level.WARNING, "disk", "this is memory", {"disk": VolumeFacts("/data", "tmpfs", 20 * GIB, 1e9, 0.0)}),
        (Level.WARNING, "disk", "10 MB/s", {"disk": VolumeFacts("/data", "nfs", 20 * GIB, 10e6, 0.0)}),
        (Level.WARNING, "disk", "100.0 ms", {"disk": VolumeFacts("/data", "nfs", 20 * GIB, 1e9, 0.1)}),
        (Level.WARNING, "clock", "chrony", {"is_clock_synchronised": False}),
    ],
)
def test_what_is_wrong_is_found_alone_with_what_to_do_about_it(level, about, words, changed):
    ((found_level, found_about, found),) = bad(**changed)

    assert (found_level, found_about) == (level, about)
    assert words in found


@pytest.mark.parametrize(
    "changed",
    [
        {"is_clock_synchronised": None},
        {"settings": (Setting("OMP_NUM_THREADS", "8"), Setting("KMP_AFFINITY", "compact"))},
        {"gpus": GpuFacts(("H200", "H200"), 140 * GIB, has_mps=True, has_nvidia=True), "torch": CUDA},
        {"memory_limit_bytes": 32 * GIB},
        {"usable_cpus": 2},
    ],
)
def test_what_is_only_unusual_is_good(changed):
    assert bad(**changed) == []

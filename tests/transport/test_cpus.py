import os
import threading

import pytest

from phalanx.transport import usable_cpus

ALL = len(os.sched_getaffinity(0))


def make(tmp_path, membership, files):
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "cgroups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return usable_cpus(tmp_path / "membership", tmp_path / "cgroups")


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/job\n", {"job/cpu.max": "max 100000\n"}, ALL),
        ("0::/job\n", {"job/cpu.max": "100000 100000\n"}, 1),
        ("0::/job\n", {"job/cpu.max": "20000 100000\n"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n"}, 1),
        ("0::/not/mounted/here\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/../outside\n", {"cpu.max": "max 100000\n"}, ALL),
        ("4:cpu,cpuacct:/job\n", {"cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n"}, ALL),
        (
            "5:memory:/\n4:cpu,cpuacct:/job\n",
            {"cpu/job/cpu.cfs_quota_us": "50000\n", "cpu/job/cpu.cfs_period_us": "50000\n"},
            1,
        ),
        ("0::/job\n", {"job/cpu.max": "nonsense\n"}, ALL),
        ("", {}, ALL),
    ],
)
def test_the_quota_of_a_control_group_counts(tmp_path, membership, files, expected):
    assert make(tmp_path, membership, files) == expected


@pytest.mark.skipif(ALL < 2, reason="with one CPU there is nothing to take away")
def test_the_cpus_that_the_scheduler_allows_count():
    found = []

    def work():
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # of this thread alone
        found.append(usable_cpus())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert found == [1]

import pytest

from phalanx.transport import memory_limit_bytes


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/job\n", {"job/memory.max": "1073741824\n"}, 1 << 30),
        ("0::/job\n", {"job/memory.max": "max\n"}, None),
        ("0::/a/b\n", {"a/b/memory.max": "2000\n", "a/memory.max": "1000\n"}, 1000),
        ("4:memory:/job\n0::/\n", {"memory/job/memory.limit_in_bytes": "4096\n"}, 4096),
        ("4:memory:/job\n", {"memory/job/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("4:cpu:/job\n", {"memory/job/memory.limit_in_bytes": "4096\n"}, None),
        ("0::/job\n", {"job/memory.max": "nonsense\n"}, None),
        ("", {}, None),
    ],
)
def test_the_least_memory_limit_of_all_control_groups_counts(tmp_path, membership, files, expected):
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "cgroups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert memory_limit_bytes(tmp_path / "membership", tmp_path / "cgroups") == expected


def test_a_system_without_control_groups_has_no_limit(tmp_path):
    assert memory_limit_bytes(tmp_path / "none", tmp_path) is None

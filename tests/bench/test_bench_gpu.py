"""The figures of ``phalanx bench gpu``: a system is compared with the floor that does the same without an exchange."""

from phalanx.bench.training.gpu import GpuAnswer, GpuTask, cells, rows


def test_a_system_is_compared_with_its_own_floor():
    seconds = {"engine": [0.3, 0.33, 0.4], "data-parallel": [0.22], "no-exchange": [0.2], "no-exchange-exact": [0.3]}
    task = GpuTask(systems=tuple(seconds), ranks=2, turns=1, steps=3, batch=16, tokens=1000)
    answer = GpuAnswer(355_000_000, "a GPU", seconds, dict.fromkeys(seconds, 30_000_000_000), {"engine": "on the GPU"})

    found = {row.system: row for row in rows(answer, task)}

    assert cells(found["engine"]) == ("engine", "330 ms", "+10.0%", "96,970", "30.0 GB")
    assert cells(found["data-parallel"])[2] == "+10.0%"
    assert found["engine"].least_s == 0.3
    assert found["engine"].route == "on the GPU"
    del seconds["no-exchange-exact"]
    assert rows(answer, task)[0].overhead is None

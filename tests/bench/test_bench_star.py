import json

import pytest
from typer.testing import CliRunner

from phalanx.cli.bench import app


@pytest.mark.slow
def test_json_has_one_object_for_each_of_them_at_every_size():
    said = CliRunner().invoke(app, ["star", "--workers", "2", "--sizes", "4KiB,1MiB", "--rounds", "1", "--json"])

    assert (said.exit_code, said.stderr) == (0, "")
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    assert [(row["bytes"], row["system"]) for row in rows] == [
        (size, system) for size in (4096, 1 << 20) for system in ("gradient-server", "star", "star-apart")
    ]
    assert {row["ranks"] for row in rows} == {2}


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--workers", "1", "'1' is not a number of workers"),
        ("--sizes", "4XB", "'4XB' is not a size"),
        ("--rounds", "0", "0 rounds"),
    ],
)
def test_a_bad_argument_is_an_error_of_one_line(option, value, words):
    said = CliRunner().invoke(app, ["star", option, value])

    assert (said.exit_code, said.stdout) == (2, "")
    assert words in said.stderr
    assert said.stderr.count("\n") == 1

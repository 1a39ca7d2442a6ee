"""``phalanx bench join``: its figures, and one measurement on hosts in namespaces."""

import json
import subprocess
import sys

import pytest

from phalanx.bench.hosts.join import STATE_BYTES_OF_LAYER, JoinTime, cells, make_row
from phalanx.launch.network import lacking


def test_a_row_compares_with_the_time_that_the_line_needs():
    row = make_row(donors=2, layers=10, rate_bits=2 * 10**9, time=JoinTime(1.0))

    assert row.line_s == 8 * 10 * STATE_BYTES_OF_LAYER / (2 * 10**9)
    assert row.times_line == 1.0 / row.line_s
    assert cells(row) == ("2", "126 MB", "503 ms at 2 Gbit/s", "1.00 s", "1.99")


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.skipif(lacking() is not None, reason=f"no hosts can be made here: {lacking()}")
def test_a_worker_joins_another_one_over_the_line():
    command = [sys.executable, "-m", "phalanx", "bench", "join", "--megabytes", "16", "--rate", "100mbit", "--json"]

    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200)

    row = json.loads(done.stdout)
    assert row["state_bytes"] == STATE_BYTES_OF_LAYER
    assert row["seconds"] > 0.5 * row["line_s"]  # the state did travel over this line

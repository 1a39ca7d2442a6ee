"""``phalanx status`` and ``--log-dir`` for runs that ``phalanx run`` and ``phalanx train`` start."""

import json

import pytest
from launching import PHALANX, finish, started, write_script
from training import LIMIT_S, call, training, wait_until, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]  # real processes, all of them

WAIT = """
    with phalanx.connect() as group:
        group.barrier()
        sys.stdout.write(os.environ["PHALANX_COORDINATOR"] + "\\n")
        sys.stdout.flush()
        group.barrier() if group.rank else signal.pause()
"""


def test_a_run_is_found_by_its_address_without_its_token(tmp_path):
    with started([*PHALANX, "run", "-n", 2, write_script(tmp_path, WAIT)]) as process:
        address = process.stdout.readline().split()[-1]
        process.stdout.readline()

        by_address, all_runs = call("status", address, "--json"), call("status")

    assert json.loads(by_address.stdout)["workers"][1]["rank"] == 1
    assert f"{address}: epoch 1" in all_runs.stdout


def test_a_run_of_phalanx_train_is_found_by_its_directory(tmp_path):
    config, run = write_config(tmp_path), tmp_path / "run"
    options = ["--run-dir", run, "--steps", 5000, "--workers", 2, "--log-dir", tmp_path / "logs"]
    with training(config, *options) as process:
        wait_until(process, lambda: (run / "steps.jsonl").is_file() and (run / "steps.jsonl").stat().st_size)

        found = call("status", run, "--json")

        process.terminate()
        process.wait(LIMIT_S)
    assert len(json.loads(found.stdout)["workers"]) == 2, found.stderr
    over = call("status", run)
    assert over.returncode == 2
    assert "has no coordinator now" in over.stderr


def test_every_rank_has_a_log(tmp_path):
    script = write_script(tmp_path, "group = phalanx.connect()\nprint(group.rank)\nprint('no', file=sys.stderr)\n")

    ended = finish([*PHALANX, "run", "-n", 2, "--log-dir", tmp_path / "logs", script])

    assert ended.returncode == 0
    found = {file.name: sorted(file.read_text().split()) for file in (tmp_path / "logs").iterdir()}
    assert found == {"rank-0.log": ["0", "no"], "rank-1.log": ["1", "no"]}

"""Runs in which one rank is slow on purpose: ``phalanx blame`` names it and why, and ``phalanx trace`` shows it."""

import contextlib
import json
import re
import secrets
from pathlib import Path

import pytest
from launching import PHALANX, started
from training import call, make_text

from phalanx.coordinator import Coordinator, Terms
from phalanx.launch import local
from phalanx.launch.env import Launch
from phalanx.launch.network import inside, lacking, network
from phalanx.launch.network_commands import SWITCH_ADDRESS
from phalanx.telemetry import read_workers
from phalanx.train.config_text import format_config, parse_config
from phalanx.train.rundir import RunDir
from phalanx.transport import Credentials, Deadline

pytestmark = pytest.mark.slow  # every worker imports torch

SCRIPT = Path(__file__).with_name("slow_worker.py")
STEPS = 14
LIMIT_S = 100
CONFIG = """
[model]
layers = 2
width = {width}
heads = 2
kv_heads = 1
hidden = 64
[data]
path = "{text}"
context = 32
[train]
steps = 14
batch = 12
lanes = 6
warmup = 1
eval_batches = 1
[run]
workers = {workers}
transport = "{transport}"
"""


def make_run(folder, workers, *, width=32, transport="auto"):
    """Make the directory of a small training."""
    text = folder / "text.txt"
    text.write_text(make_text(), encoding="utf-8")
    config = parse_config(CONFIG.format(text=text, workers=workers, width=width, transport=transport), source="test")
    return RunDir.create(folder / "run", format_config(config), {})


def train_slowly(run, how, workers, *, namespaces=(), switch=None):
    """Run the workers of a training to their end, and return its directory."""
    job, credentials = secrets.token_hex(8), Credentials(secrets.token_hex(16).encode())
    with contextlib.ExitStack() as stack:
        with inside(switch) if switch else contextlib.nullcontext():
            where = SWITCH_ADDRESS if switch else "127.0.0.1"
            made = Coordinator(where, terms=Terms.exactly(workers, job=job), credentials=credentials)
        coordinator = stack.enter_context(made)
        launches = [
            Launch(
                rank=rank,
                size=workers,
                job=job,
                coordinator=(coordinator.address,),
                host=f"host{rank}" if namespaces else None,
                credentials=credentials,
            )
            for rank in range(workers)
        ]
        program = local.Program(name=str(SCRIPT), arguments=(str(run.path), how, *namespaces), workers=workers)
        assert local.start(program, launches) == 0
    return run.path


def slow_rank(run):
    """The rank of the worker that was slow."""
    pid = (run / "slow.pid").read_text(encoding="utf-8")
    (worker,) = [each for each in read_workers(run / "telemetry") if each.worker.endswith(f":{pid}")]
    return int(worker.table["rank"][-1])


def blamed(run):
    """What costs the most time."""
    told = call("blame", run, "--json")
    assert told.returncode == 0, told.stderr
    report = json.loads(told.stdout)
    assert report["blames"], told.stdout
    return report, report["blames"][0]


@pytest.mark.parametrize(("how", "waste"), [("backward", "slow backward"), ("loader", "late data")])
def test_the_rank_that_is_slow_in_backward_or_with_its_data_is_named(tmp_path, how, waste):
    run = train_slowly(make_run(tmp_path, 2), how, 2)

    report, worst = blamed(run)

    assert (worst["ranks"], worst["waste"]) == ([slow_rank(run)], waste), report
    assert worst["seconds"] > 3 * 0.05 * 0.5, "it has three lanes, each 50 ms slower"
    assert f"rank {slow_rank(run)} costs" in call("blame", run).stdout


def test_the_slow_line_of_a_rank_is_named(tmp_path):
    if reason := lacking():
        pytest.skip(reason)
    with network([None, None, 50_000_000]) as made:
        run = make_run(tmp_path, 3, width=128, transport="tcp")
        run = train_slowly(run, "link", 3, namespaces=made.hosts, switch=made.switch)

    report, worst = blamed(run)

    assert worst["waste"] == "slow link", report
    assert slow_rank(run) in worst["ranks"], report  # on a busy machine perhaps with the other end of a link
    _check_trace(run, workers=3)


def test_the_rank_that_hangs_is_named_with_what_its_python_code_does(tmp_path):
    run = make_run(tmp_path, 2)
    with started([*PHALANX, "run", "-n", 2, SCRIPT, run.path, "hang"]) as process:
        address = next(line.split()[-1] for line in process.stdout if "coordinator " in line)

        deadline, told = Deadline.after(LIMIT_S), ""
        while not re.search(r"step 2: rank \d waits for rank \d", told) and not deadline.has_passed:
            told = call("blame", address).stdout

    assert re.search(r"step 2: rank \d waits for rank \d", told)
    assert "in hang_on_purpose" in told, "the stacks are those of the rank that hangs"


def _check_trace(run, workers):
    """A trace has a slice for every bucket that was exchanged, and an arrow to it."""
    assert call("trace", run, "--steps", f"0:{STEPS}", "--out", run / "all.json").returncode == 0
    events = json.loads((run / "all.json").read_text(encoding="utf-8"))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    ready = [event for event in slices if event["name"].startswith("ready")]
    exchanges = [event for event in slices if event["name"].startswith("exchange")]
    assert len(ready) == len(exchanges) > 0
    assert len(exchanges) % (STEPS * workers) == 0
    ends = [event for event in events if event["ph"] == "f"]
    own = {(each["pid"], each["args"]["step"], each["args"]["bucket"]) for each in exchanges}
    assert len(own) == len(exchanges)
    assert len(ends) == len(exchanges) + len(exchanges) * (workers - 1) // workers

"""How a run stands, for programs."""

import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from run_records import make_steps

from phalanx.telemetry import Activity, Blame, BlameReport, StepTimes, Waste
from phalanx.train.incidents import Incident
from phalanx.train.run_status import RunStatus, describe_status, format_metrics

SAMPLE = re.compile(r'phalanx_[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[0-9.]+(e[+-]?[0-9]+)?')
BLAME = Blame(
    ranks=(1,), waste=Waste.BACKWARD, share=0.25, seconds=0.02, own_s=0.06, others_s=0.04, words="rank 1 costs 25%"
)


def times_of(ranks, steps=3):
    table = np.full((steps, len(ranks)), 0.5)
    return StepTimes(
        steps=np.arange(steps),
        ranks=np.array(ranks),
        spent=dict.fromkeys(Activity, table),
        lanes=table,
        step_s=np.ones(steps),
        exchange_s=np.zeros(steps),
        link_waits=np.zeros((len(ranks), len(ranks))),
    )


@pytest.fixture
def status():
    report = BlameReport(first_step=0, last_step=2, ranks=(0, 1), step_s=0.1, blames=(BLAME,))
    return describe_status(
        make_steps(40),
        planned_steps=1000,
        incidents=[
            Incident(time=1.0, step=3, words="lost", losses=2, recovery_s=0.5),
            Incident(time=2.0, step=9, words="joined", joins=1),
        ],
        times=times_of([0, 1]),
        report=report,
    )


def test_a_sentence_says_how_the_run_stands_and_who_is_slow(status):
    assert status.words == "step 41 of 1,000, 10,240 tokens/s; rank 1 costs 25%"


def test_the_status_has_the_figures_of_the_last_step_and_of_all_incidents(status):
    assert (status.step, status.workers, status.losses, status.recoveries, status.recovery_s) == (41, 2, 2, 1, 0.5)
    assert status.wasted == {"slow backward of rank 1": 0.25}
    assert msgspec.json.decode(msgspec.json.encode(status), type=RunStatus) == status


def test_metrics_are_lines_that_prometheus_reads_with_one_type_for_each_name(status):
    lines = format_metrics(status).splitlines()

    samples = [line for line in lines if not line.startswith("#")]
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert all(SAMPLE.fullmatch(line) for line in samples), samples
    assert len(types) == len(set(types)), "each name has one type"
    assert {line.partition("{")[0].split()[0] for line in samples} == set(types)
    assert "phalanx_workers_lost_total 2" in lines
    assert 'phalanx_rank_seconds{rank="1",activity="backward"} 0.5' in lines


def test_the_dashboard_asks_only_for_figures_that_there_are(status):
    path = Path(__file__).parents[2] / "examples" / "grafana.json"
    panels = json.loads(path.read_text(encoding="utf-8"))["panels"]

    asked = {target["expr"] for panel in panels for target in panel["targets"]}

    known = format_metrics(msgspec.structs.replace(status, eval_loss=1.0))
    assert asked <= set(re.findall(r"^# TYPE (\w+)", known, re.MULTILINE))


def test_a_run_that_has_taken_no_step_has_a_status_too():
    status = describe_status([], planned_steps=None, incidents=[], times=None, report=None)

    assert status.words == "step 0, 0 tokens/s"
    assert "phalanx_loss" not in format_metrics(status)

"""The events that a real coordinator writes down."""

import pytest
from stepping import Stepper

from phalanx.coordinator import Coordinator, EventLog, Journal, Terms, read_events
from phalanx.coordinator.events import CoordinatorStarted, EpochBegan, RunEnded, WorkerCame, WorkerLeft


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def test_a_calm_run_has_a_beginning_and_an_end_and_nothing_between(path, tmp_path):
    with (
        Journal(tmp_path / "journal") as journal,
        EventLog(path) as log,
        Coordinator(terms=Terms(minimum=2, maximum=2, patience_s=0.2), journal=journal, events=log) as coordinator,
    ):
        workers = [Stepper(coordinator.address, f"anvil:{number}", 20) for number in range(2)]
        for worker in workers:
            worker.join()
        assert coordinator.wait_until_over(20)
        events = list(read_events(path))

    kinds = [CoordinatorStarted, WorkerCame, WorkerCame, EpochBegan, WorkerLeft, WorkerLeft, RunEnded]
    assert [type(event) for event in events] == kinds
    assert [seat.host for seat in events[3].members] == ["anvil"] * 2
    assert (events[-1].step, events[-1].words) == (20, "all workers left it at step 20")


def test_a_coordinator_that_fails_says_so_in_the_events(path, monkeypatch):
    with EventLog(path) as log, Coordinator(terms=Terms.exactly(1), events=log) as coordinator:
        monkeypatch.setattr(coordinator._membership, "tick", None)
        assert coordinator.wait_until_over(20)

    last = list(read_events(path))[-1]
    assert (type(last), last.has_halted) == (RunEnded, True)
    assert last.words.startswith("the coordinator failed: TypeError")

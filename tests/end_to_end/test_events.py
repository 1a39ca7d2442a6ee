"""What is written down about real workers that are killed, and what ``phalanx explain`` makes of it."""

import json
import resource
import socket
from contextlib import ExitStack

import pytest
from coordinating import WORKER, Leash, run, running, serving
from stepping import Stepper

from phalanx.coordinator import read_events
from phalanx.coordinator.events import Admitted, CoordinatorStarted, Recovered, RunEnded, WorkerLost
from phalanx.transport import parse_address

pytestmark = pytest.mark.slow  # real processes, all of them

STEPS = 60


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def options(folder):
    return ["--workers", "2:3", "--patience", 3, "--journal", folder / "journal", "--events", folder / "events.jsonl"]


def begin(stack, coordinator, address):
    """Two workers in threads, then one in a process; the leash holds them at step 10."""
    leash = Leash(limit=1)
    where = parse_address(address)
    threads = [Stepper(where, "forge:0", STEPS, on_step=leash), Stepper(where, "forge:1", STEPS)]
    leash.wait_for(1)
    process = stack.enter_context(running([*WORKER, address, f"{socket.gethostname()}:2", ""]))
    coordinator.wait_for(f"{socket.gethostname()}:2 at ")
    leash.let(10)
    process.wait_for("step 10 ")
    return threads, process, leash


def of_kind(events, kind):
    return [event for event in events if isinstance(event, kind)]


def test_a_worker_that_joins_and_is_killed_and_a_coordinator_that_is_killed_are_explained(stack, tmp_path):
    with serving(*options(tmp_path)) as (coordinator, address):
        threads, victim, leash = begin(stack, coordinator, address)
        victim.process.kill()
        leash.let(30)
        leash.wait_for(30)
        coordinator.process.kill()
        coordinator.finish()
    with serving(*options(tmp_path), bind=address) as (coordinator, _):
        leash.let(STEPS + 1)
        assert [thread.join().applied for thread in threads] == [list(range(STEPS))] * 2
        assert coordinator.finish()[0] == 0

    events = list(read_events(tmp_path / "events.jsonl"))
    (lost,) = of_kind(events, WorkerLost)
    after_loss, after_restart = of_kind(events, Recovered)
    (admitted,) = of_kind(events, Admitted)
    assert (lost.pid, lost.host) == (victim.pid, socket.gethostname())
    assert [seat.pid for seat in admitted.newcomers] == [victim.pid]
    assert (after_loss.lost, after_loss.members, after_restart.lost) == (1, 2, 0)
    assert 0 <= after_loss.epoch_s <= after_loss.commit_s
    assert [start.is_restart for start in of_kind(events, CoordinatorStarted)] == [False, True]
    assert (events[-1].step, events[-1].has_halted) == (STEPS, False)

    status, out, err = run("explain", tmp_path)
    assert (status, err) == (0, "")
    assert f"(process {victim.pid} on {socket.gethostname()}) was lost: its connection closed" in out
    assert f"The coordinator was started again on its journal, at step {after_restart.step}." in out
    assert f"The run ended: all workers left it at step {STEPS}.\n" in out
    story = json.loads(run("explain", tmp_path, "--json")[1])
    assert {name: story[name] for name in ("steps", "losses", "joins", "coordinator_restarts")} == {
        "steps": STEPS,
        "losses": 1,
        "joins": 1,
        "coordinator_restarts": 1,
    }
    assert story["recoveries_s"] == [after_loss.commit_s, after_restart.commit_s]


def test_a_full_disk_costs_events_but_not_the_run(tmp_path):
    path = tmp_path / "events.jsonl"
    with serving("--workers", 2, "--patience", 0.2, "--events", path) as (coordinator, address):
        limit = path.stat().st_size + 10
        resource.prlimit(coordinator.pid, resource.RLIMIT_FSIZE, (limit, limit))
        threads = [Stepper(parse_address(address), f"forge:{number}", STEPS) for number in range(2)]
        assert [thread.join().applied for thread in threads] == [list(range(STEPS))] * 2
        status, out, err = coordinator.finish()

    assert (status, out.splitlines()[-1]) == (0, f"phalanx: the run is over: all workers left it at step {STEPS}")
    assert err.count(f"cannot write events to {path}: File too large; the run continues") == 1
    assert [type(event) for event in read_events(path)] == [CoordinatorStarted]


def test_events_that_cannot_be_written_from_the_start_are_refused(tmp_path):
    status, _, err = run("coordinator", "--bind", "127.0.0.1:0", "--workers", 2, "--events", tmp_path)

    assert (status, err) == (2, f"phalanx: cannot write events to {tmp_path}: Is a directory; name another file\n")


def test_a_run_that_halts_says_why(tmp_path):
    path = tmp_path / "events.jsonl"
    with serving("--workers", 2, "--patience", 0.2, "--events", path) as (coordinator, address):
        where = parse_address(address)
        digests = [lambda _: b"one", lambda _: b"another"]
        threads = [Stepper(where, f"forge:{rank}", STEPS, digest=digests[rank]) for rank in range(2)]
        for thread in threads:
            thread.join()
        assert coordinator.finish()[0] == 1

    last = list(read_events(path))[-1]
    assert (type(last), last.has_halted) == (RunEnded, True)
    assert "has other weights than rank" in last.words

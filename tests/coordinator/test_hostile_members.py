"""Whatever a member sends, the run of the others ends with the right digest."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from stepping import LIMIT_S, Stepper, digest_of

from phalanx.coordinator import Coordinator, Terms
from phalanx.testing.hostile import HostileMember, hostile_members
from phalanx.transport import Deadline

STEPS, LANES = 5, 8
MEMBERS = hostile_members()
SILENT = {"silence", "half a frame"}  # given up after the stall time
EXPECTED = hashlib.sha256(b"".join(map(digest_of, range(STEPS)))).hexdigest()


def run_beside(what):
    """Take all steps with two workers and a member that misbehaves; return the workers and its last words."""
    terms = Terms(minimum=2, maximum=3, patience_s=0.5, stall_s=0.5 if what in SILENT else 100.0)
    with ExitStack() as stack:
        coordinator = stack.enter_context(Coordinator(terms=terms))
        hostile = HostileMember(coordinator.address, MEMBERS[what], Deadline.after(LIMIT_S), lanes=LANES)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        words = pool.submit(hostile.misbehave)
        workers = [Stepper(coordinator.address, f"w{number}", STEPS, lanes=LANES) for number in range(2)]
        return [worker.join() for worker in workers], words.result(LIMIT_S), coordinator


@pytest.mark.parametrize("what", MEMBERS)
def test_the_run_of_the_others_ends_with_the_right_digest(what, caplog):
    with caplog.at_level("DEBUG", "phalanx"):
        workers, words, coordinator = run_beside(what)

    for worker in workers:
        assert worker.error is None
        steps = [digest_of(step) for step in worker.applied]
        assert worker.applied == list(range(STEPS))[-len(steps) :]  # one that came later got the state of the others
    assert max(len(worker.applied) for worker in workers) == STEPS
    first = max(workers, key=lambda worker: len(worker.applied))
    assert hashlib.sha256(b"".join(map(digest_of, first.applied))).hexdigest() == EXPECTED
    assert not coordinator.has_halted
    assert words or what.startswith("a flood"), "it was not told why it was sent away"
    assert all(line.isprintable() for line in caplog.text.splitlines())
    assert all(line.startswith("    ") for record in caplog.records for line in record.getMessage().splitlines()[1:])

import os
import re
import threading
from contextlib import ExitStack

import pytest
from stepping import Stepper, digest_of

from phalanx.coordinator import Coordinator, Journal, Terms, look
from phalanx.errors import (
    AuthError,
    ConnectError,
    Halted,
    JoinRefused,
    MembershipError,
    NonFiniteGradient,
    WeightsDiverged,
)
from phalanx.transport import Credentials, Deadline
from phalanx.wire import Reason


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def serve(stack, minimum, maximum=None, **options):
    terms = Terms(minimum=minimum, maximum=maximum or minimum, patience_s=options.pop("patience_s", 2.0))
    return stack.enter_context(Coordinator(terms=terms, **options))


class Gate:
    """Stops a worker at a step until it is opened."""

    def __init__(self, step):
        self.reached, self._step, self._open = threading.Event(), step, threading.Event()

    def __call__(self, step):
        if step == self._step:
            self.reached.set()
            assert self._open.wait(20), "nobody opened the gate"

    def wait(self):
        assert self.reached.wait(20), "nobody came to the gate"

    def open(self):
        self._open.set()


def wait_for_workers(coordinator, count):
    """Return when so many are there, members or not."""
    deadline = Deadline.after(20)
    while len(look(coordinator.address, deadline, Credentials()).workers) < count:
        assert not deadline.has_passed


def test_every_worker_commits_every_step_once(stack):
    coordinator = serve(stack, 4, patience_s=0.5)

    workers = [Stepper(coordinator.address, f"w{number}", 20) for number in range(4)]

    assert [worker.join().applied for worker in workers] == [list(range(20))] * 4
    assert [worker.error for worker in workers] == [None] * 4
    assert coordinator.wait_until_over(20)
    assert coordinator.ended == "all workers left it at step 20"


def test_lanes_are_given_to_the_workers_of_every_epoch(stack):
    coordinator = serve(stack, 3)

    workers = [Stepper(coordinator.address, f"w{number}", 1) for number in range(3)]

    for worker in workers:
        worker.join()
    assert [member.lanes for member in workers[0].welcomes[0].members] == [(0, 3), (3, 6), (6, 8)]


def test_a_worker_that_vanishes_costs_no_step(stack):
    coordinator = serve(stack, 2, 3)
    gates = [Gate(1), Gate(5)]
    first = Stepper(coordinator.address, "w0", 12, on_step=lambda step: [gate(step) for gate in gates])
    second = Stepper(coordinator.address, "w1", 12)
    gates[0].wait()
    third = Stepper(coordinator.address, "w2", 12)
    wait_for_workers(coordinator, 3)
    gates[0].open()
    gates[1].wait()

    third.client._connection.socket.shutdown(2)  # as if its machine lost the network: nobody says goodbye
    gates[1].open()

    assert first.join().applied == second.join().applied == list(range(12))
    assert third.join().error is None or isinstance(third.error, JoinRefused)


def test_a_worker_whose_connection_breaks_comes_again_and_goes_on(stack):
    coordinator = serve(stack, 2)
    gate = Gate(5)
    workers = [Stepper(coordinator.address, "w0", 12, on_step=gate), Stepper(coordinator.address, "w1", 12)]
    gate.wait()

    workers[1].client._connection.socket.shutdown(2)
    gate.open()

    assert [worker.join().applied for worker in workers] == [list(range(12))] * 2
    assert [worker.welcomes[-1].epoch for worker in workers] == [2, 2]
    assert workers[0].welcomes[-1].step in (5, 6)


def test_a_late_worker_is_admitted_between_two_steps(stack):
    coordinator = serve(stack, 1, 2)
    gate = Gate(3)
    early = Stepper(coordinator.address, "early", 10, on_step=gate)
    gate.wait()

    late = Stepper(coordinator.address, "late", 10)
    wait_for_workers(coordinator, 2)
    gate.open()

    early.join()
    late.join()
    assert early.applied == list(range(10))
    assert late.applied == list(range(late.welcomes[0].step, 10))
    assert (early.error, late.error) == (None, None)


def test_everybody_halts_at_the_same_step_with_the_same_words(stack):
    coordinator = serve(stack, 3)
    gates = [Gate(4) for _ in range(3)]
    workers = [Stepper(coordinator.address, f"w{number}", 10, on_step=gate) for number, gate in enumerate(gates)]
    for gate in gates:
        gate.wait()

    workers[1].client.halt(workers[1].epochs[-1], Reason.NON_FINITE, 1, "lane 3 of step 4: nan in w_q")
    for gate in gates:
        gate.open()

    errors = [worker.join().error for worker in workers]
    assert {type(error) for error in errors} == {NonFiniteGradient}
    (words,) = {str(error) for error in errors}
    assert re.fullmatch(rf"lane 3 of step 4: nan in w_q; rank 1 is process {os.getpid()} on w\d", words)
    assert {(error.step, error.rank) for error in errors} == {(4, 1)}


def test_weights_that_differ_halt_everybody_and_name_the_odd_rank(stack):
    coordinator = serve(stack, 3)

    def other(step):
        return digest_of(step) if step < 2 else b"something else"

    workers = [Stepper(coordinator.address, f"w{number}", 10) for number in range(2)]
    odd = Stepper(coordinator.address, "odd", 10, digest=other)

    errors = [worker.join().error for worker in (*workers, odd)]
    assert {type(error) for error in errors} == {WeightsDiverged}
    assert {error.rank for error in errors} == {odd.welcomes[0].rank}
    assert [worker.applied for worker in (*workers, odd)] == [[0, 1]] * 3


@pytest.mark.slow
def test_a_run_that_stays_short_of_workers_ends_for_everybody(stack):
    coordinator = serve(stack, 2, patience_s=0.2)
    gate = Gate(2)
    stays = Stepper(coordinator.address, "stays", 10, on_step=gate)
    goes = Stepper(coordinator.address, "goes", 2)
    goes.join()

    gate.open()

    assert isinstance(stays.join().error, Halted)
    assert str(stays.error).startswith("there were 1 of at least 2 workers for 2.4 s at step 2: ")


def test_only_who_knows_the_token_takes_part(stack):
    token = Credentials(b"a token that is long enough")
    coordinator = serve(stack, 1, credentials=token)

    wrong = Stepper(coordinator.address, "wrong", 3, credentials=Credentials(b"another token, also long"))
    without = Stepper(coordinator.address, "without", 3)
    right = Stepper(coordinator.address, "right", 3, credentials=token)

    assert isinstance(wrong.join().error, AuthError)
    assert isinstance(without.join().error, AuthError)
    assert right.join().applied == [0, 1, 2]


def test_a_coordinator_that_comes_back_on_its_journal_goes_on_at_the_same_step(stack, tmp_path):
    journal = stack.enter_context(Journal(tmp_path / "journal"))
    before = serve(stack, 2, journal=journal)
    gate = Gate(5)
    workers = [Stepper(before.address, "w0", 12, on_step=gate), Stepper(before.address, "w1", 12)]
    gate.wait()

    before.close()
    journal.close()
    again = stack.enter_context(Journal(tmp_path / "journal"))
    terms = Terms(minimum=2, maximum=2, patience_s=2.0)
    stack.enter_context(Coordinator(before.address.host, before.address.port, terms=terms, journal=again))
    gate.open()

    assert [worker.join().applied for worker in workers] == [list(range(12))] * 2
    assert [worker.error for worker in workers] == [None, None]
    assert (again.past.step, again.past.epoch) == (5, 1)
    assert [worker.welcomes[-1].epoch for worker in workers] == [2, 2]


def test_who_comes_when_the_run_is_over_is_told_so(stack):
    coordinator = serve(stack, 1, patience_s=0.5)
    Stepper(coordinator.address, "only", 2).join()
    assert coordinator.wait_until_over(20)

    late = Stepper(coordinator.address, "late", 2)

    assert isinstance(late.join().error, JoinRefused)
    assert "the run is over (all workers left it at step 2)" in str(late.error)


def test_what_is_done_in_an_epoch_that_is_over_is_void_even_if_another_has_its_number(stack):
    before = serve(stack, 1)
    gate = Gate(2)
    worker = Stepper(before.address, "w0", 5, on_step=gate)
    gate.wait()

    before.close()  # without a journal: the next one begins to count from 1 again
    terms = Terms(minimum=1, maximum=1, patience_s=2.0)
    again = stack.enter_context(Coordinator(before.address.host, before.address.port, terms=terms))
    wait_for_workers(again, 1)
    gate.open()

    assert worker.join().applied == list(range(5))
    assert worker.error is None
    assert [(welcome.epoch, welcome.step) for welcome in worker.welcomes] == [(1, 0), (1, 2)]


@pytest.mark.slow
def test_a_mistake_of_the_coordinator_ends_it_and_is_told(stack, monkeypatch, caplog):
    coordinator = serve(stack, 1, patience_s=0.2)
    gate = Gate(1)
    worker = Stepper(coordinator.address, "w0", 5, on_step=gate)
    gate.wait()

    monkeypatch.setattr(coordinator._membership, "hear", lambda *_: 1 / 0)
    gate.open()

    assert coordinator.wait_until_over(20)
    assert coordinator.ended == "the coordinator failed: ZeroDivisionError('division by zero')"
    assert coordinator.has_halted
    assert "ZeroDivisionError" in caplog.text
    assert isinstance(worker.join().error, ConnectError)


def test_a_mistake_in_a_workers_own_thread_ends_its_waits(stack, monkeypatch):
    coordinator = serve(stack, 1)
    gate = Gate(1)
    worker = Stepper(coordinator.address, "w0", 5, on_step=gate)
    gate.wait()
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # it is raised there on purpose

    monkeypatch.setattr(worker.client._participant, "hear", lambda *_: 1 / 0)
    gate.open()

    assert isinstance(worker.join().error, MembershipError)
    assert "ZeroDivisionError('division by zero'); start it again" in str(worker.error)

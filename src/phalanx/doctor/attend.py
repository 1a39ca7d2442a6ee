"""Asks a coordinator, and meets the doctors of other machines there to measure the ways between all of them."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from phalanx.coordinator import Coordinator, NotesClient, Terms, look
from phalanx.doctor.facts import DoctorHello, MachineFacts, PhaseReport, encode_note
from phalanx.doctor.finding import CheckFinding, good, problem
from phalanx.doctor.judge_coordinator import judge_answer, judge_refusal
from phalanx.doctor.judge_machines import judge_clocks, judge_machines, name_machines
from phalanx.doctor.meeting import DoctorMeeting
from phalanx.doctor.phases import plan_phases
from phalanx.doctor.probe import Answerer, first_sentence, measure_way
from phalanx.errors import ConfigError, DeadlineExceeded, PhalanxError
from phalanx.group import published
from phalanx.transport import Acceptor, Credentials, Deadline, Listener, format_address, is_loopback, shortage_in_words
from phalanx.wire import Address, Purpose

_ANSWER_S = 10.0
_PHASE_S = 60.0  # the slowest measurement, with much to spare
_FAREWELL_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Appointment:
    """Where the doctors of ``machines`` machines meet; of one machine, only the way to the coordinator is checked.

    ``clock`` is this machine's, and ``say`` tells the user what is waited for.
    """

    address: Address
    credentials: Credentials
    machines: int = 1
    timeout_s: float = _ANSWER_S
    clock: Callable[[], float] = time.time
    say: Callable[[str], None] = field(default=lambda _: None)


def attend(facts: MachineFacts, appointment: Appointment) -> Iterator[CheckFinding]:
    """Yield the findings about the coordinator, then about all machines."""
    address, credentials = appointment.address, appointment.credentials
    deadline = Deadline.after(appointment.timeout_s)
    with shortage_in_words("cannot check other machines"), ExitStack() as closing:
        host = None
        try:
            if appointment.machines > 1 and _is_free_here(address):
                host = closing.enter_context(_serve(address, credentials))
                yield good("coordinator", f"nobody listened on {format_address(address)}, so this check does meanwhile")
            elif appointment.machines > 1:
                appointment.say(f"waiting up to {appointment.timeout_s:g} s for an answer of {format_address(address)}")
            client = closing.enter_context(NotesClient(address, deadline, credentials, appointment.clock))
            clock = client.compare_clocks(Deadline.after(_ANSWER_S))
            yield from judge_answer(address, client.local_host, clock, credentials)
            if host is None:
                words = look(address, Deadline.after(_ANSWER_S), credentials).words
                yield good("coordinator", f"its run: {words}")
            acceptor = _listen(client.local_host, address, credentials)
            closing.enter_context(Answerer(acceptor))
            introduction = DoctorHello(
                facts, published(client.local_host, acceptor), clock.offset_s, clock.round_trip_s / 2
            )
            if appointment.machines == 1:
                yield from judge_clocks([facts.name], [introduction])
            else:
                yield from _meet(client, introduction, appointment, deadline)
                if host is not None:
                    _see_off(client)
        except ConfigError:
            raise
        except PhalanxError as error:
            yield judge_refusal(address, error, first_sentence(error))


def _meet(
    client: NotesClient, introduction: DoctorHello, appointment: Appointment, deadline: Deadline
) -> Iterator[CheckFinding]:
    assert client.author is not None, "the clock was compared, and so the number is known"
    meeting = DoctorMeeting(client.author, appointment.machines)
    client.post(encode_note(introduction))
    where, count = format_address(appointment.address), appointment.machines
    appointment.say(
        f"waiting up to {appointment.timeout_s:g} s for {count} machines: run the same command on all of them"
    )

    def is_complete() -> bool:
        meeting.hear(client.notes, client.gone)
        return meeting.is_complete

    try:
        client.wait_until(is_complete, deadline)
    except DeadlineExceeded:
        present = meeting.introductions
        words = f"{len(present)} of {count} machines came within {appointment.timeout_s:g} s"
        names = ", ".join(name_machines(present))
        advice = f"run `phalanx doctor {where} --machines {count}` on all of them at the same time"
        yield problem("machines", f"{words}: {names}", advice)
        yield from judge_machines(present, None, meeting.own)
        return
    appointment.say(f"measuring all ways between {count} machines")
    phase = 0
    with suppress(DeadlineExceeded):  # a doctor that is late may never come
        for phase in range(len(plan_phases(count))):
            _perform(client, meeting, phase, appointment.credentials)
    late = [name_machines(meeting.introductions)[place] for place in meeting.late(phase)]
    yield from judge_machines(meeting.introductions, meeting.ways, meeting.own, late)


def _perform(client: NotesClient, meeting: DoctorMeeting, phase: int, credentials: Credentials) -> None:
    """Measure a way if it is this machine's turn, and wait until all machines are done with the phase."""
    target, way = meeting.target(phase), None
    if target is not None:
        addresses = meeting.introductions[target].addresses
        way = measure_way(addresses, credentials, whom="it")
    client.post(encode_note(PhaseReport(phase, way)))

    def is_over() -> bool:
        meeting.hear(client.notes, client.gone)
        return meeting.is_over(phase)

    client.wait_until(is_over, Deadline.after(_PHASE_S))


def _see_off(client: NotesClient) -> None:
    """Stay until all other doctors have gone: the coordinator ends with this process."""
    others = client.notes.keys() - {client.author}
    with suppress(DeadlineExceeded):
        client.wait_until(lambda: others <= client.gone, Deadline.after(_FAREWELL_S))


def _is_free_here(address: Address) -> bool:
    """Whether the address is one of this machine and nobody listens there."""
    try:
        Listener(address.host, address.port).close()
    except ConfigError:
        return False
    return True


def _serve(address: Address, credentials: Credentials) -> Coordinator:
    """Return a coordinator at an address of this machine; a name may stand for loopback here and not elsewhere."""
    serving = Coordinator(address.host, address.port, terms=Terms(), credentials=credentials)
    if is_loopback(serving.address.host) and not is_loopback(address.host):
        serving.close()
        return Coordinator("0.0.0.0", address.port, terms=Terms(), credentials=credentials)  # noqa: S104 - for others
    return serving


def _listen(local_host: str, address: Address, credentials: Credentials) -> Acceptor:
    """Listen for other doctors as workers listen for each other."""
    if is_loopback(address.host):
        return Acceptor(local_host, 0, credentials, Purpose.PROBE)
    return Acceptor("::" if ":" in local_host else "0.0.0.0", 0, credentials, Purpose.PROBE)  # noqa: S104 - for others

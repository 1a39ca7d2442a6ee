from itertools import permutations

import pytest
from doctor_facts import introduce

from phalanx.doctor.facts import MeasuredWay, PhaseReport, encode_note
from phalanx.doctor.meeting import DoctorMeeting
from phalanx.doctor.phases import plan_phases
from phalanx.errors import JoinRefused, ProtocolError


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 15, 16, 64])
def test_every_machine_connects_to_every_other_one_once_and_is_in_one_pair_at_a_time(count):
    phases = plan_phases(count)

    pairs = [pair for phase in phases for pair in phase]
    assert sorted(pairs) == list(permutations(range(count), 2))
    for phase in phases:
        places = [place for pair in phase for place in pair]
        assert len(places) == len(set(places))
    assert len(phases) == 2 * (count - 1 + count % 2)


def notes_of(*names):
    """The notes of doctors that have introduced themselves, by the numbers 5, 7, 9 and so on."""
    return {5 + 2 * place: [encode_note(introduce(name))] for place, name in enumerate(names)}


def test_places_follow_the_numbers_whoever_looks():
    for author, place in ((5, 0), (7, 1), (9, 2)):
        meeting = DoctorMeeting(author, 3)

        meeting.hear(notes_of("a", "b", "c"), set())

        assert meeting.is_complete
        assert meeting.own == place
        assert [each.facts.name for each in meeting.introductions] == ["a", "b", "c"]


def test_who_left_before_all_had_come_does_not_count():
    meeting = DoctorMeeting(7, 2)
    meeting.hear(notes_of("a", "b"), {5})

    assert not meeting.is_complete

    meeting.hear(notes_of("a", "b", "c"), {5})

    assert [each.facts.name for each in meeting.introductions] == ["b", "c"]


def test_who_comes_too_late_is_told():
    meeting = DoctorMeeting(9, 2)

    with pytest.raises(JoinRefused, match="2 other machines are at it already"):
        meeting.hear(notes_of("a", "b", "c"), set())


def test_a_phase_is_over_when_all_have_reported_or_gone_and_ways_are_known_by_pair():
    meeting, notes = DoctorMeeting(5, 2), notes_of("a", "b")
    meeting.hear(notes, set())
    assert plan_phases(2) == [[(0, 1)], [(1, 0)]]
    assert [meeting.target(phase) for phase in (0, 1)] == [1, None]

    notes[5].append(encode_note(PhaseReport(0, MeasuredWay("closed"))))
    meeting.hear(notes, set())
    assert not meeting.is_over(0)
    notes[7].append(encode_note(PhaseReport(0, None)))
    meeting.hear(notes, set())
    assert meeting.is_over(0)
    assert meeting.ways == {(0, 1): MeasuredWay("closed")}

    notes[5].append(encode_note(PhaseReport(1, None)))
    meeting.hear(notes, {7})
    assert meeting.is_over(1)
    assert meeting.late(1) == [1]
    assert meeting.target(0) is None


def test_a_note_that_nobody_understands_is_an_error():
    meeting = DoctorMeeting(5, 2)

    with pytest.raises(ProtocolError, match="install the same on all machines"):
        meeting.hear({7: [b"\xc1"]}, set())

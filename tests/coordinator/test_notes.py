"""Notes that clients leave for each other at the coordinator."""

import time

import pytest
from coordinator_play import Play, run_hello, told

from phalanx.coordinator import Coordinator, NotesClient
from phalanx.coordinator.decision import Say
from phalanx.errors import JoinRefused
from phalanx.transport import Credentials, Deadline
from phalanx.wire import PostedNote, PostNote, Refused, Revoked

LIMIT_S = 20


class TestNoticeboard:
    def test_all_authors_get_a_note_and_a_newcomer_gets_the_earlier_ones(self):
        play = Play(2)

        first = play.say(5, PostNote(b"a"))
        second = play.say(6, PostNote(b"b"))

        assert first == [Say((5,), PostedNote(5, b"a"))]
        assert second == [Say((6,), PostedNote(5, b"a")), Say((5, 6), PostedNote(6, b"b"))]

    def test_the_notes_of_who_hangs_up_are_void(self):
        play = Play(2)
        play.say(5, PostNote(b"a"))
        play.say(6, PostNote(b"b"))

        assert play.hang_up(5) == [Say((6,), PostedNote(5, None))]
        assert play.say(7, PostNote(b"c")) == [Say((7,), PostedNote(6, b"b")), Say((6, 7), PostedNote(7, b"c"))]

    def test_an_empty_note_asks_for_the_time_and_nobody_else_hears_of_it(self):
        play = Play(2)
        play.say(5, PostNote(b"a"))

        assert play.say(6, PostNote(b"")) == [Say((6,), PostedNote(6, b""))]
        assert play.hang_up(6) == []

    def test_authors_and_notes_are_bounded(self):
        play = Play(2)
        for connection in range(10, 74):
            play.say(connection, PostNote(b"a"))
        for _ in range(255):
            play.say(10, PostNote(b"more"))

        assert set(told(play.say(74, PostNote(b"a")), Refused)) == {74}
        assert set(told(play.say(10, PostNote(b"more")), Refused)) == {10}

    def test_a_worker_that_is_in_posts_nothing(self):
        play = Play(2)
        play.say(0, run_hello("w0"))
        play.say(1, run_hello("w1"))

        decisions = play.say(1, PostNote(b"a"))

        assert told(decisions, PostedNote) == {}
        assert set(told(decisions, Revoked)) == {0}


class TestClients:
    @pytest.fixture
    def make(self):
        with Coordinator() as coordinator:
            yield lambda **clock: NotesClient(coordinator.address, Deadline.after(LIMIT_S), Credentials(), **clock)

    def test_clients_see_each_others_notes_until_one_leaves(self, make):
        with make() as left, make() as right:
            left.post(b"l")
            right.post(b"r")
            for client in (left, right):
                client.wait_until(lambda client=client: len(client.notes) == 2, Deadline.after(LIMIT_S))
            left.compare_clocks(Deadline.after(LIMIT_S))

            assert left.notes[left.author] == [b"l"]
            right.close()
            left.wait_until(lambda: left.gone == left.notes.keys() - {left.author}, Deadline.after(LIMIT_S))

    @pytest.mark.parametrize("ahead_s", [-60.0, 0.0, 60.0])
    def test_a_clock_that_is_off_is_found_to_within_half_of_the_round_trip(self, make, ahead_s):
        with make(clock=lambda: time.time() + ahead_s) as client:
            sample = client.compare_clocks(Deadline.after(LIMIT_S))

        assert abs(sample.offset_s + ahead_s) <= sample.round_trip_s / 2 + 0.001

    def test_who_is_refused_learns_why(self, make):
        with make() as client:
            for _ in range(257):
                client.post(b"n")

            with pytest.raises(JoinRefused, match="it has posted 256 notes"):
                client.wait_until(lambda: False, Deadline.after(LIMIT_S))

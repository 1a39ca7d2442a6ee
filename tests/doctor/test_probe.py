"""Real connections on this machine."""

from contextlib import ExitStack

import pytest

from phalanx.doctor.facts import MeasuredWay
from phalanx.doctor.probe import Answerer, measure_way
from phalanx.transport import Acceptor, Credentials
from phalanx.wire import Purpose

TOKEN = Credentials(b"sixteen-or-more-characters")


@pytest.fixture
def answering():
    with ExitStack() as closing:

        def answer(purpose=Purpose.PROBE):
            acceptor = Acceptor("127.0.0.1", 0, TOKEN, purpose)
            closing.enter_context(Answerer(acceptor))
            return acceptor.address

        yield answer


def test_a_way_that_is_open_has_a_speed_and_a_round_trip(answering):
    way = measure_way([answering()], TOKEN, "b")

    assert way.fault == ""
    assert way.bits_s > 0
    assert way.round_trip_s > 0


def test_a_port_on_which_nobody_listens_is_named():
    acceptor = Acceptor("127.0.0.1", 0, TOKEN, Purpose.PROBE)
    address = acceptor.address
    acceptor.close()

    way = measure_way([address], TOKEN, "b")

    words = f"b could not be reached within 4 s: 127.0.0.1:{address.port}: Connection refused"
    assert way == MeasuredWay(words)


@pytest.mark.parametrize(
    ("purpose", "credentials", "words"),
    [
        (Purpose.PROBE, Credentials(b"another-of-many-characters"), "the token is wrong"),
        (Purpose.LINK, TOKEN, "this worker is not what you look for, which is a doctor"),
    ],
)
def test_who_does_not_let_us_in_says_why(answering, purpose, credentials, words):
    way = measure_way([answering(purpose)], credentials, "b")

    assert words in way.fault

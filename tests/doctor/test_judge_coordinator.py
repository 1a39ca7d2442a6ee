import pytest

from phalanx.coordinator import ClockSample
from phalanx.doctor import Level
from phalanx.doctor.judge_coordinator import judge_answer, judge_refusal
from phalanx.errors import AuthError, ConnectError, JoinRefused, ProtocolError
from phalanx.transport import Credentials
from phalanx.wire import Address

WHERE = Address("10.0.0.5", 7000)


@pytest.mark.parametrize(
    ("error", "about", "advice"),
    [
        (ConnectError("it could not be reached"), "coordinator", "accept TCP connections to port 7000"),
        (AuthError("the token is wrong"), "token", "the same token file on all machines"),
        (ProtocolError("you speak version 2"), "protocol", "install the same release everywhere"),
        (JoinRefused("3 other machines are at it"), "machines", "check again"),
    ],
)
def test_who_is_not_let_in_learns_why_and_what_to_do(error, about, advice):
    finding = judge_refusal(WHERE, error, str(error))

    assert (finding.level, finding.about, finding.found) == (Level.PROBLEM, about, str(error))
    assert advice in finding.advice


def test_who_is_let_in_learns_by_which_address_and_with_which_proof():
    reached, proof = judge_answer(WHERE, "10.0.0.6", ClockSample(0.0, 0.0005), Credentials(b"x" * 16))

    assert str(reached) == "reached at 10.0.0.5:7000 from 10.0.0.6, round trip 0.50 ms"
    assert str(proof) == "the token is right, and both sides speak version 1 of the protocol"

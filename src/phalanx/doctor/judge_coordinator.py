"""Decides what it means how a coordinator answers."""

from phalanx.coordinator import ClockSample
from phalanx.doctor.finding import CheckFinding, good, problem
from phalanx.errors import AuthError, JoinRefused, PhalanxError, ProtocolError
from phalanx.transport import Credentials, format_address
from phalanx.wire import VERSION, Address


def judge_answer(address: Address, local_host: str, clock: ClockSample, credentials: Credentials) -> list[CheckFinding]:
    """Return the findings about a coordinator that has let us in."""
    proof = "the token is right" if credentials.token else "no token is needed"
    proof += ", TLS is on" if credentials.tls else ""
    trip = f"round trip {1000 * clock.round_trip_s:.2f} ms"
    return [
        good(
            "coordinator",
            f"reached at {format_address(address)} from {local_host}, {trip}",
        ),
        good("token", f"{proof}, and both sides speak version {VERSION} of the protocol"),
    ]


def judge_refusal(address: Address, error: PhalanxError, words: str) -> CheckFinding:
    """Return the finding about a coordinator that did not answer, or did not let us in."""
    where = format_address(address)
    if isinstance(error, AuthError):
        advice = "use the same token file on all machines (compare it with sha256sum), and TLS on all or on none"
        return problem("token", words, advice)
    if isinstance(error, JoinRefused):
        return problem("machines", words, "check again when they are done")
    if isinstance(error, ProtocolError):
        return problem("protocol", words, f"is {where} the right port? If so, install the same release everywhere")
    return problem(
        "coordinator",
        words,
        f"start `phalanx coordinator --bind {where}` or `phalanx train --bind {where}` there, and let its machine "
        f"accept TCP connections to port {address.port}; on other machines, `ping {address.host}`",
    )

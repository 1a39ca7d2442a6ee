"""Valid messages in which something was changed: whatever comes of one, the others go on or hear why not."""

import msgspec
from coordinator_play import only, run_hello, run_of, told, waiting
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import BadFrame
from phalanx.wire import Cause, Commit, Done, Failed, Halt, Holds, Leave, Reason, Revoked, Welcome, decode

VALID = [
    Done(1, 1, 0.5, b"same"),
    waiting(0, 2),
    Failed(1, Cause.STALLED, 2, "late"),
    Failed(1, Cause.GARBLED, 2, "noise"),
    Halt(1, Reason.NON_FINITE, 1, "not finite"),
    Holds(1),
    Leave(),
    run_hello("w1"),
]
HALTING = (Halt, Failed, Leave)  # what may end the run, or its sender's part in it, when it makes sense

values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([2**16 - 1, 2**31, 2**32, 2**53, 2**63, 2**64 - 1, -(2**63)]),
    st.floats(),
    st.sampled_from(["", "w0", "garbled", "stuck", "lost", "x" * 5000, "\x1b[2J"]),
    st.binary(max_size=70),
    st.lists(st.integers(-1, 70_000), max_size=3),
)


@st.composite
def mutated(draw):
    """The fields of a valid message, one of them changed, gone, or new."""
    fields = msgspec.to_builtins(draw(st.sampled_from(VALID)), builtin_types=(bytes,))
    field = draw(st.sampled_from([*fields, "more"]))
    if draw(st.booleans()):
        fields[field] = draw(values)
    else:
        fields.pop(field, None)
    return msgspec.msgpack.encode(fields)


@settings(deadline=None, max_examples=300)
@given(mutated())
def test_a_mutated_message_changes_nothing_for_the_others(payload):
    play = run_of(3, least=2, most=3)
    play.finish_step(10, 11, 12)

    try:
        message = decode(payload)
        decisions = play.say(11, message)
    except BadFrame as error:
        message = None
        decisions = play.garble(11, str(error))
    decisions += play.wait(1.0)

    if play.membership.ended is not None:
        assert isinstance(message, HALTING)
        if isinstance(message, Leave):  # it says that the run is over: whoever goes on is told
            decisions = play.finish_step(10, 12)
        assert told(decisions, Halt).keys() >= {10, 12}
        return
    blamed = [each.rank for each in told(decisions, Revoked).values()]
    assert set(blamed) <= {1, message.rank if isinstance(message, Failed) else 1}
    members = told(decisions, Welcome) or (10, 11, 12)
    assert only(play.finish_step(*members), Commit).step == 1

import pytest

from phalanx.errors import ConfigError, ConnectError, JoinRefused, PeerLost, ProtocolError
from phalanx.launch import connect
from phalanx.launch.connect import is_elsewhere


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (JoinRefused("refused: this is the coordinator of job 'a', not of 'b'"), True),
        (JoinRefused("refused: the group is complete: start again"), True),
        (JoinRefused("refused: rank 1 is taken"), False),
        (ConnectError("it hung up"), True),
        (ConnectError("no link to rank 2", peer=2), False),
        (ProtocolError("no frame"), True),
        (PeerLost("rank 2 went away", peer=2), False),
        (ConfigError("nonsense"), False),
    ],
)
def test_only_who_is_not_our_coordinator_is_passed_over(error, expected):
    assert is_elsewhere(error) is expected


def test_data_goes_over_what_there_is():
    with pytest.raises(ConfigError, match="over must be auto or tcp, not 'pigeon'"):
        connect(over="pigeon")

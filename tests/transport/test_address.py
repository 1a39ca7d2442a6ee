import pytest

from phalanx.errors import ConfigError
from phalanx.transport import format_address, is_loopback, own_hosts, parse_address
from phalanx.wire import Address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.5:29400", Address("10.0.0.5", 29400)),
        ("anvil:0", Address("anvil", 0)),
        ("[fd00::5]:65535", Address("fd00::5", 65535)),
    ],
)
def test_an_address_is_read_and_written_alike(text, address):
    assert parse_address(text) == address
    assert format_address(address) == text


@pytest.mark.parametrize("text", ["", "anvil", ":80", "anvil:", "anvil:x", "anvil:-1", "anvil:65536", "[]:80"])
def test_what_is_no_address_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match="write host:port, as in"):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.0.1.1", True),
        ("::1", True),
        ("10.0.0.5", False),
        ("anvil", False),
    ],
)
def test_loopback_is_known_by_its_address(host, expected):
    assert is_loopback(host) is expected


def test_an_address_that_others_can_reach_is_the_only_one_published():
    assert own_hosts("10.0.0.5") == ("10.0.0.5",)


@pytest.mark.parametrize("reached_from", ["127.0.0.1", "::1"])
def test_no_other_loopback_address_is_published(reached_from):
    first, *others = own_hosts(reached_from)

    assert first == reached_from
    assert not any(is_loopback(host) or "%" in host for host in others)
    assert len(set(others)) == len(others)

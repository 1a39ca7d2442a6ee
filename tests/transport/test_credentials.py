import ssl

import pytest
from certificates import make_authority, make_certificate, needs_openssl

from phalanx.errors import ConfigError
from phalanx.transport import Credentials, Tls, make_token, parse_token

TOKEN = "sixteen-or-more-characters"  # noqa: S105 - it keeps nobody out


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    return make_certificate(folder, make_authority(folder))


def test_a_token_is_read_without_the_space_around_it():
    assert parse_token(f"  {TOKEN}\n", "FILE") == TOKEN.encode()


def test_a_short_token_is_refused_without_being_quoted():
    with pytest.raises(ConfigError, match="the token in FILE is too short") as caught:
        parse_token("fifteen-letters", "FILE")

    assert "fifteen" not in str(caught.value)


def test_a_token_that_was_made_can_be_read_and_differs_from_the_next():
    token = make_token()

    assert parse_token(token, "FILE") == token.encode()
    assert token != make_token()


def test_credentials_do_not_show_their_token():
    credentials = Credentials(TOKEN.encode())

    assert TOKEN not in repr(credentials)
    assert TOKEN not in str(credentials)


@needs_openssl
def test_both_sides_ask_for_a_certificate_and_for_tls_1_2_or_newer(paths):
    tls = Tls(*paths)

    for context in (tls.server, tls.client):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert not context.check_hostname


@needs_openssl
@pytest.mark.parametrize("which", ["cert", "key", "ca"])
def test_a_file_that_is_missing_is_named(paths, tmp_path, which):
    missing = tmp_path / "missing.pem"

    with pytest.raises(ConfigError, match=f"cannot read {missing}: No such file or directory"):
        Tls(**paths._replace(**{which: missing})._asdict())


@needs_openssl
@pytest.mark.parametrize("which", ["cert", "key", "ca"])
def test_a_file_that_holds_something_else_is_named(paths, tmp_path, which):
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("this is no certificate")

    with pytest.raises(ConfigError, match=str(wrong)):
        Tls(**paths._replace(**{which: wrong})._asdict())


@needs_openssl
def test_the_key_of_another_certificate_is_refused(paths, tmp_path):
    other = make_certificate(tmp_path, make_authority(tmp_path), "other")

    with pytest.raises(ConfigError, match=str(other.key)):
        Tls(paths.cert, other.key, paths.ca)

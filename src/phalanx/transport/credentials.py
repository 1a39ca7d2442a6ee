"""How the two ends of a connection prove who they are: a token, and certificates on networks that are not trusted."""

import secrets
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.errors import ConfigError

_FEWEST_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate, its key, and the authority whose certificates are accepted: on both sides, by both sides.

    The names in certificates are not compared with addresses, since workers are reached by number: use an authority
    of your own that signs nothing else.
    """

    cert: Path
    key: Path
    ca: Path
    server: ssl.SSLContext = field(init=False, repr=False, compare=False)
    client: ssl.SSLContext = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for path in (self.cert, self.key, self.ca):
            try:
                path.read_bytes()  # the library does not say which file it could not read
            except OSError as error:
                raise ConfigError(f"cannot read {path}: {error.strerror}; TLS needs cert, key and ca") from error
        object.__setattr__(self, "server", self._context(ssl.PROTOCOL_TLS_SERVER))
        object.__setattr__(self, "client", self._context(ssl.PROTOCOL_TLS_CLIENT))

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self.cert, self.key, password=str)  # empty: never ask at the terminal
        except ssl.SSLError as error:
            words = f"{self.cert} and {self.key} are no certificate with its unencrypted key, in PEM"
            raise ConfigError(f"{words}: {error.reason or error}") from error
        try:
            context.load_verify_locations(self.ca)
        except ssl.SSLError as error:
            raise ConfigError(f"{self.ca} holds no certificate in PEM: {error.reason or error}") from error
        return context


@dataclass(frozen=True, slots=True)
class Credentials:
    """The token that all sides of a job share, and their certificates; either may be missing."""

    token: bytes | None = field(default=None, repr=False)
    tls: Tls | None = None


def parse_token(text: str, where: str) -> bytes:
    """Return the token in ``text``. ``where`` says where it was found, since an error must not quote it."""
    token = text.strip()
    if len(token) < _FEWEST_CHARACTERS:
        raise ConfigError(
            f"the token in {where} is too short to keep anybody out: make one of {_FEWEST_CHARACTERS} characters "
            "or more with `phalanx token > FILE`"
        )
    return token.encode()


def make_token() -> str:
    """Return a new token, too long to guess."""
    return secrets.token_urlsafe(32)

"""The handshake: both sides prove that they know the token before either decodes a message of the other.

It has four messages, all of fixed size but for the words of a refusal; docs/wire-format.md specifies them:

    client                                       server
    open: purpose, nonce     ──────────────────▶
                             ◀──────────────────  challenge: nonce
    proof                    ──────────────────▶
                             ◀──────────────────  verdict: proof

If the server refuses a client, it says why, in place of the challenge or of the verdict.
"""

import hmac
import struct
from collections.abc import Generator
from enum import IntEnum

from phalanx.errors import AuthError, BadFrame, PhalanxError, ProtocolError
from phalanx.wire.frame import MAGIC, OPENING_BYTES, VERSION, check_opening
from phalanx.wire.text import printable

_NONCE_BYTES = 32
_PROOF_BYTES = 32
_MOST_WORDS_BYTES = 1024
_OPEN = struct.Struct(f"<4sBBBB{_NONCE_BYTES}s")
_ANSWER = struct.Struct("<4sBBH")  # magic, version, status; flags of a challenge, or the length of what follows

_Script = Generator[tuple[bytes, int], bytes, tuple[bytes, PhalanxError | None]]
"""Yields bytes to send and how many to read next, and is sent these. Returns the last bytes to send, and the error."""


class Purpose(IntEnum):
    """What a connection is for."""

    COORDINATOR = 1
    LINK = 2
    STAR = 3
    DATA = 4
    PROBE = 5

    @property
    def server(self) -> str:
        """The name of the side that answers, for messages."""
        return _SERVERS[self]


_SERVERS = {
    Purpose.COORDINATOR: "coordinator",
    Purpose.LINK: "worker",
    Purpose.STAR: "gradient server",
    Purpose.DATA: "server of data",
    Purpose.PROBE: "doctor",
}


class _Status(IntEnum):
    ACCEPTED = 0
    REFUSED = 1
    UNPROVEN = 2
    """Refused because of the token."""


class Handshake:
    """One side of the handshake: feed what arrives, send what comes back.

    It ends when ``wanted`` is 0. Then ``error`` says why it failed, or is None. Send the last bytes in both cases: they
    may tell the other side why it was refused.
    """

    NONCE_BYTES = _NONCE_BYTES

    def __init__(self, script: _Script) -> None:
        self._script = script
        self._arrived = b""
        self._opening, self.wanted = next(script)
        self.error: PhalanxError | None = None

    @classmethod
    def client(cls, purpose: Purpose, secret: bytes | None, nonce: bytes) -> "Handshake":
        """Return the side that connects. ``nonce`` is fresh random bytes, ``secret`` the token or None."""
        return cls(_call(purpose, secret, nonce))

    @classmethod
    def server(cls, purpose: Purpose, secret: bytes | None, nonce: bytes) -> "Handshake":
        """Return the side that accepts the connection."""
        return cls(_answer(purpose, secret, nonce))

    @property
    def is_done(self) -> bool:
        """Whether both sides have proven themselves."""
        return not self.wanted and self.error is None

    def begin(self) -> bytes:
        """Return the first bytes to send."""
        return self._opening

    def feed(self, data: bytes) -> bytes:
        """Take at most ``wanted`` bytes, and return what to send."""
        assert len(data) <= self.wanted, "what follows the handshake is not its own"
        self._arrived += data
        self.wanted -= len(data)
        if self.wanted:
            return b""
        arrived, self._arrived = self._arrived, b""
        try:
            reply, self.wanted = self._script.send(arrived)
        except StopIteration as end:
            reply, self.error = end.value
        except PhalanxError as error:
            reply, self.error = b"", error
        return reply


def _call(purpose: Purpose, secret: bytes | None, nonce: bytes) -> _Script:
    flags = int(secret is not None)
    their_flags, their_nonce = yield from _ask(_OPEN.pack(MAGIC, VERSION, purpose, flags, 0, nonce), _NONCE_BYTES)
    if their_flags != flags:
        raise BadFrame(f"a challenge has flags {their_flags:#x}, and should have {flags:#x}")
    own, expected = _proofs(purpose, secret, nonce, their_nonce)
    length, proof = yield from _ask(own, _PROOF_BYTES)
    if length != _PROOF_BYTES:
        raise BadFrame(f"a proof has {_PROOF_BYTES} bytes, not {length}")
    if not hmac.compare_digest(proof, expected):
        raise AuthError(f"this {purpose.server} does not know the token: it is not the one you look for")
    return b"", None


def _ask(question: bytes, answer_bytes: int) -> Generator[tuple[bytes, int], bytes, tuple[int, bytes]]:
    """Return the flags or length in the server's answer, and what follows them. Raises if the server refuses."""
    opening = yield question, OPENING_BYTES
    check_opening(opening)
    _, _, status, detail = _ANSWER.unpack(opening + (yield b"", _ANSWER.size - OPENING_BYTES))
    if status == _Status.ACCEPTED:
        return detail, (yield b"", answer_bytes)
    if status not in (_Status.REFUSED, _Status.UNPROVEN) or not 0 < detail <= _MOST_WORDS_BYTES:
        raise BadFrame(f"an answer with status {status} and {detail} bytes of words is no refusal")
    words = printable((yield b"", detail).decode(errors="replace"))
    raise AuthError(words) if status == _Status.UNPROVEN else ProtocolError(words)


def _answer(purpose: Purpose, secret: bytes | None, nonce: bytes) -> _Script:
    opening = yield b"", OPENING_BYTES
    if error := _judge_opening(opening):
        return _refuse(error)
    _, _, asked, flags, reserved, their_nonce = _OPEN.unpack(opening + (yield b"", _OPEN.size - OPENING_BYTES))
    own_flags = int(secret is not None)
    if error := _judge_open(purpose, asked, own_flags, flags, reserved):
        return _refuse(error)
    expected, own = _proofs(purpose, secret, their_nonce, nonce)
    proof = yield _ANSWER.pack(MAGIC, VERSION, _Status.ACCEPTED, own_flags) + nonce, _PROOF_BYTES
    if not hmac.compare_digest(proof, expected):
        return _refuse(AuthError(f"the token is wrong: pass the one that this {purpose.server} was started with"))
    return _ANSWER.pack(MAGIC, VERSION, _Status.ACCEPTED, _PROOF_BYTES) + own, None


def _judge_opening(opening: bytes) -> PhalanxError | None:
    if opening.startswith(MAGIC) and (version := opening[-1]) != VERSION:
        return ProtocolError(
            f"this is Phalanx wire version {VERSION}, you speak version {version}: "
            "install the same release on all machines"
        )
    try:
        check_opening(opening)
    except BadFrame as error:
        return error
    return None


def _judge_open(purpose: Purpose, asked: int, own_flags: int, flags: int, reserved: int) -> PhalanxError | None:
    here = f"this {purpose.server}"
    if flags > 1 or reserved:
        return BadFrame(f"an opening has flags {flags:#x} and {reserved:#x}, which nobody knows")
    if asked != purpose:
        sought = f"a {Purpose(asked).server}" if asked in _SERVERS else f"something else ({asked})"
        return ProtocolError(f"{here} is not what you look for, which is {sought}: check the address and port")
    if own_flags and not flags:
        return AuthError(f"{here} asks for a token: pass --token-file, or set PHALANX_TOKEN_FILE or PHALANX_TOKEN")
    if flags and not own_flags:
        return AuthError(f"{here} has no token, and you have one: start it with yours, or come without")
    return None


def _refuse(error: PhalanxError) -> tuple[bytes, PhalanxError]:
    words = str(error).encode()[:_MOST_WORDS_BYTES]
    status = _Status.UNPROVEN if isinstance(error, AuthError) else _Status.REFUSED
    return _ANSWER.pack(MAGIC, VERSION, status, len(words)) + words, error


def _proofs(purpose: Purpose, secret: bytes | None, client_nonce: bytes, server_nonce: bytes) -> tuple[bytes, bytes]:
    """Return the client's and the server's proof. Their labels differ, so neither can be replayed as the other."""
    about = bytes((VERSION, purpose)) + client_nonce + server_nonce
    client, server = (
        hmac.digest(secret or b"", label + about, "sha256") for label in (b"phalanx client", b"phalanx server")
    )
    return client, server

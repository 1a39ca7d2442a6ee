"""Reading whole frames from the bytes of a stream."""

from phalanx.errors import BadFrame
from phalanx.wire.frame import HEADER_BYTES, OPENING_BYTES, Header, check_opening


class FrameReader:
    """Makes whole frames from bytes that arrive in any lengths.

    It holds no more than it was sent. A length in a header allocates nothing before the bytes arrive, and a length over
    ``limit_bytes`` is refused at once. After a BadFrame nobody knows where the next frame begins, so every further call
    raises the same error.
    """

    def __init__(self, limit_bytes: int = 4096) -> None:
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._header: Header | None = None
        self._refusal: str | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take in what the peer sent. The data is copied."""
        self._check()
        self._buffer += data

    def next_frame(self) -> tuple[Header, bytes] | None:
        """Return the next header and its payload, or None until more bytes are fed."""
        self._check()
        try:
            return self._take_frame()
        except BadFrame as error:
            self._refuse(error)
            raise

    @property
    def wants(self) -> int:
        """The number of bytes that are missing: of a header, or of the payload of a header that was peeked."""
        size_bytes = HEADER_BYTES if self._header is None else self._header.length
        return max(0, size_bytes - len(self._buffer))

    def peek_header(self) -> Header | None:
        """Return the header of the next frame without taking it, or None until more bytes are fed."""
        self._check()
        try:
            self._header = self._header or self._take_header()
        except BadFrame as error:
            self._refuse(error)
            raise
        return self._header

    def skip_payload(self) -> None:
        """Drop the header that was peeked: its payload is received elsewhere, and never fed."""
        assert self._header is not None, "peek at the header first"
        self._header = None

    def raise_limit(self, limit_bytes: int) -> None:
        """Accept payloads of up to ``limit_bytes`` from now on. Call this when the peer has proven itself."""
        self._check()
        self._limit_bytes = max(self._limit_bytes, limit_bytes)

    def _check(self) -> None:
        if self._refusal is not None:
            raise BadFrame(self._refusal)

    def _refuse(self, error: BadFrame) -> None:
        self._refusal = str(error)
        self._buffer.clear()

    def _take_frame(self) -> tuple[Header, bytes] | None:
        header = self._header
        if header is None:
            header = self._header = self._take_header()
        if header is None:
            return None
        if header.length > self._limit_bytes:
            raise BadFrame(f"a frame is over the limit of {self._limit_bytes} bytes: {header}")
        if len(self._buffer) < header.length:
            return None
        self._header = None
        return header, self._take(header.length)

    def _take_header(self) -> Header | None:
        if len(self._buffer) < HEADER_BYTES:
            # A stranger may send less than a header and then wait for an answer.
            if len(self._buffer) >= OPENING_BYTES:
                check_opening(self._buffer)
            return None
        return Header.unpack(self._take(HEADER_BYTES))

    def _take(self, length: int) -> bytes:
        with memoryview(self._buffer) as view:
            taken = bytes(view[:length])
        del self._buffer[:length]  # moves a pointer, not the rest, so that many frames in one buffer cost no more each
        return taken

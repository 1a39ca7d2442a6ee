"""Messages while they are on their way: neither sending nor receiving ever waits."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from phalanx.buffers import Array, DType, ReduceOp, as_bytes, finish, fold
from phalanx.collectives.call import Call
from phalanx.errors import BadFrame, CollectiveMismatch
from phalanx.transport import Link
from phalanx.wire import HEADER_BYTES, Header

_SEND_BYTES = 1 << 22  # what is offered to a link at once: receiving gets its turn in between
_FOLD_BYTES = 1 << 20  # scratch for each peer: enough to keep the links busy while a chunk is folded
_SMALL_BYTES = 4096 + HEADER_BYTES
_JOINED_BYTES = 1 << 16


class Outgoing:
    """What is on its way out through one link, in order; more may be put there until it ``ends``."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._waiting: deque[list[memoryview]] = deque()  # one thread may append while another takes away
        self._has_ended = False
        self.puts = 0
        """How often something was put here, or the end said."""

    @property
    def is_done(self) -> bool:
        """Whether the link has taken everything there will ever be."""
        return self._has_ended and not self._waiting

    @property
    def waiting(self) -> int:
        """How many of the things that were put here have not left completely."""
        return len(self._waiting)

    def put(self, *parts: memoryview) -> None:
        """Send this when all before it has left. The memory must not change until then."""
        # Something small leaves as one part; what is large is never copied.
        is_small = len(parts) > 1 and sum(map(len, parts)) <= _SMALL_BYTES
        self._waiting.append([memoryview(b"".join(parts))] if is_small else list(parts))
        self.puts += 1

    def end(self) -> None:
        """Say that nothing more comes."""
        self._has_ended = True
        self.puts += 1

    def advance(self) -> bool:
        """Send what there is room for; False if there is none, or nothing to send."""
        room = _SEND_BYTES
        if len(self._waiting) > 1:
            self._join_small()
        while self._waiting and room:
            parts = self._waiting[0]
            offered = parts[0][:room]
            sent = self.link.send_nowait(offered)
            room -= sent
            if sent == len(parts[0]):
                parts.pop(0)
                if not parts:
                    self._waiting.popleft()
            else:
                parts[0] = parts[0][sent:]
            if sent < len(offered):
                break
        return room < _SEND_BYTES

    def _join_small(self) -> None:
        """Copy small things that wait one behind another together: each would be a call to the system."""
        joined: list[memoryview] = []
        count = size = 0
        while count < len(self._waiting) and size < _JOINED_BYTES:
            more = sum(map(len, self._waiting[count]))
            if more > _SMALL_BYTES:
                break
            joined += self._waiting[count]
            count, size = count + 1, size + more
        if count > 1:
            self._waiting[count - 1] = [memoryview(b"".join(joined))]  # so that never all seems to have left
            for _ in range(count - 1):
                self._waiting.popleft()


class Incoming:
    """One message on its way in: its header, which must be the expected one, then its payload, window by window."""

    def __init__(self, link: Link, name: int, call: Call, expected: Header) -> None:
        self.link = link
        self._name = name
        self._call = call
        self._expected = expected
        self._header = bytearray(HEADER_BYTES)
        self._window = memoryview(self._header)
        self._next: memoryview | None = None
        self.is_blocked = False
        """Whether nothing had arrived when it was last tried; whoever has waited for more takes that back."""

    @property
    def is_full(self) -> bool:
        """Whether the header and the window given last are filled."""
        return not self._window and self._next is None

    def fill(self, window: memoryview) -> None:
        """Receive into ``window`` when what was given before is full."""
        if self._window:
            self._next = window
        else:
            self._window = window

    def advance(self) -> bool:
        """Take what has arrived; False if nothing has, or there is no room."""
        if not self._window:
            return False
        received = self.link.receive_nowait(self._window)
        if received == 0:
            self.is_blocked = True
            return False
        self._window = self._window[received:]
        if not self._window and self._next is not None:
            self._check_header()
            self._window, self._next = self._next, None
        return True

    @property
    def missing(self) -> int:
        """How many bytes of the header, or else of the window, are missing: if the header differs, no more may come."""
        return len(self._window)

    def _check_header(self) -> None:
        if self._header == self._expected.pack():
            return
        peer = self.link.peer
        try:
            theirs = Header.unpack(bytes(self._header))
        except BadFrame as error:
            words = f"rank {peer} sent bytes to rank {self._name} that are no frame, instead of {self._call}: {error}"
            raise BadFrame(words, peer=peer) from None
        words, own = f"call {theirs.tag.sequence}, {theirs.signature}", str(self._call)
        if theirs.signature is None or words == own:  # the difference is in the rest of the header
            words, own = str(theirs), str(self._expected)
        raise CollectiveMismatch.between(peer, words, self._name, own)


class Sink(Protocol):
    """Where messages of a call arrive, and what becomes of them."""

    @property
    def is_done(self) -> bool:
        """Whether everything has arrived and was dealt with."""

    @property
    def hungry(self) -> list[Incoming]:
        """The messages of which bytes are missing."""

    def advance(self, *, may_write: bool) -> bool:
        """Take what has arrived and do some work on it; False if nothing could be done.

        ``may_write`` says that everything sent in this round has left.
        """


class Store:
    """A message that becomes the content of a part."""

    def __init__(self, incoming: Incoming, part: Array) -> None:
        self._incoming = incoming
        incoming.fill(as_bytes(part))

    @property
    def is_done(self) -> bool:
        """Whether everything has arrived."""
        return self._incoming.is_full

    @property
    def hungry(self) -> list[Incoming]:
        """The messages of which bytes are missing."""
        return [] if self._incoming.is_full else [self._incoming]

    def advance(self, *, may_write: bool) -> bool:  # noqa: ARG002 - what is stored is never being sent
        """Take what has arrived; False if nothing has."""
        return self._incoming.advance()


@dataclass(frozen=True, slots=True)
class Folding:
    """How contributions of ``size`` ranks become one: partial sums stay sums, and the last fold divides for a mean."""

    op: ReduceOp
    dtype: DType
    size: int

    def combine(self, inputs: Sequence[Array], out: Array) -> None:
        """Fold some of the contributions."""
        fold(ReduceOp.SUM if self.op.is_mean else self.op, self.dtype, inputs, out)

    def finish(self, inputs: Sequence[Array], out: Array) -> None:
        """Fold the last of them."""
        if len(inputs) == self.size:
            fold(self.op, self.dtype, inputs, out)  # all at once: rounded once, also where elements are narrow
        else:
            self.combine(inputs, out)
            finish(self.op, self.dtype, out, self.size, out)


class Fold:
    """Messages that are contributions to one part: folded, chunk by chunk, in the order of their ranks."""

    def __init__(
        self,
        contributions: Mapping[int, Incoming],
        rank: int,
        part: Array,
        combine: Callable[[Sequence[Array], Array], None],
        *,
        is_leaving: bool,
    ) -> None:
        self._is_leaving = is_leaving  # the part is also being sent: fold into it all at once, when it has left
        self._contributions = contributions
        self._part = part
        self._combine = combine
        self._length = len(part) if is_leaving else min(len(part), _FOLD_BYTES // part.itemsize)
        self._scratch = {peer: np.empty(self._length, part.dtype) for peer in contributions}
        self._order = sorted([rank, *self._scratch])
        self._rank = rank
        self._folded = 0
        self._open_windows()

    @property
    def is_done(self) -> bool:
        """Whether everything has arrived and was folded."""
        return self._folded == len(self._part)

    @property
    def hungry(self) -> list[Incoming]:
        """The messages of which bytes are missing."""
        return [incoming for incoming in self._contributions.values() if not incoming.is_full]

    def advance(self, *, may_write: bool) -> bool:
        """Take what has arrived, and fold a chunk that is complete; False if nothing could be done.

        ``may_write`` says that everything sent in this round has left.
        """
        has_advanced = False
        for incoming in self._contributions.values():
            has_advanced |= incoming.advance()
        if self.hungry or (self._is_leaving and not may_write):
            return has_advanced
        own = self._part[self._folded : self._folded + self._length]
        inputs = [own if rank == self._rank else self._scratch[rank][: len(own)] for rank in self._order]
        self._combine(inputs, own)
        self._folded += len(own)
        self._open_windows()
        return True

    def _open_windows(self) -> None:
        length = min(self._length, len(self._part) - self._folded)
        if length:
            for peer, incoming in self._contributions.items():
                incoming.fill(as_bytes(self._scratch[peer][:length]))

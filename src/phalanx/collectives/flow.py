"""The messages of a round while they are on their way: neither sending nor receiving ever waits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from phalanx.buffers import Array, DType, ReduceOp, as_bytes, finish, fold
from phalanx.collectives.call import Call
from phalanx.errors import CollectiveMismatch
from phalanx.transport import Link
from phalanx.wire import HEADER_BYTES, Header

_SEND_BYTES = 1 << 22  # what is offered to a link at once: receiving gets its turn in between
_FOLD_BYTES = 1 << 20  # scratch for each peer: enough to keep the links busy while a run is folded
_SMALL_BYTES = 4096


class Outgoing:
    """One message on its way out."""

    def __init__(self, link: Link, header: bytes, payload: memoryview) -> None:
        self.link = link
        # A small message leaves as one piece; a large one is never copied.
        self._waiting = (
            [memoryview(header + payload)] if len(payload) <= _SMALL_BYTES else [memoryview(header), payload]
        )

    @property
    def is_done(self) -> bool:
        """Whether the link has taken everything."""
        return not self._waiting

    def advance(self) -> bool:
        """Send what there is room for; False if there is none."""
        data = self._waiting[0]
        sent = self.link.send_nowait(data[:_SEND_BYTES])
        self._waiting[0] = data[sent:]
        if sent == len(data):
            self._waiting.pop(0)
        return sent > 0


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
        self._window = self._window[received:]
        if not self._window and self._next is not None:
            self._check_header()
            self._window, self._next = self._next, None
        return received > 0

    def _check_header(self) -> None:
        if self._header == self._expected.pack():
            return
        theirs, peer = Header.unpack(bytes(self._header)), self.link.peer
        words = f"call {theirs.tag.sequence}, {theirs.signature}"
        if theirs.signature == self._expected.signature and theirs.length != self._expected.length:
            words += f" with {theirs.length} bytes on the wire instead of {self._expected.length}"
        raise CollectiveMismatch.between(peer, words, self._name, self._call)


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
    def hungry(self) -> list[Link]:
        """The links from which bytes are missing."""
        return [] if self._incoming.is_full else [self._incoming.link]

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
    """Messages that are contributions to one part: folded, run by run, in the order of their ranks."""

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
    def hungry(self) -> list[Link]:
        """The links from which bytes are missing."""
        return [incoming.link for incoming in self._contributions.values() if not incoming.is_full]

    def advance(self, *, may_write: bool) -> bool:
        """Take what has arrived, and fold a run that is complete; False if nothing could be done.

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

"""What a reducer needs of the other ranks. A ``Group`` offers it, and so does a connection to a gradient server."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from phalanx.buffers import Array, DType
from phalanx.collectives import Finish
from phalanx.errors import Halted
from phalanx.transport import Pending


class Exchange(Protocol):
    """Ranks that train together. All make the same calls in the same order, and one thread carries them out.

    The methods are those of ``Group``, where they are described.
    """

    @property
    def rank(self) -> int:
        """This member's number."""

    @property
    def size(self) -> int:
        """How many members there are."""

    @property
    def lanes(self) -> int | None:
        """Into how many lanes a step is cut."""

    @property
    def host_position(self) -> tuple[int, int]:
        """This rank's number among the ranks of its host, and how many they are."""

    @property
    def waited_s(self) -> float:
        """How long this rank has waited for others so far."""

    def allocate(self, shape: int | Sequence[int], dtype: DType | str | type = ..., *, shared: bool = ...) -> Array:
        """Zeroed memory that the exchange can use without a copy."""

    def all_reduce(self, array: Array) -> Array:
        """Replace the array by the sum of all ranks' arrays."""

    def all_reduce_nowait(self, array: Array) -> Pending[Array]:
        """Begin an ``all_reduce``."""

    def fold_lanes_nowait(
        self,
        pieces: Array,
        out: Array,
        *,
        lanes: int,
        blocks: Sequence[slice],
        finish: Finish,
        wire: DType | None = None,
        own: Mapping[int, Array] | None = None,
    ) -> Pending[Array]:
        """Begin to add up all lanes of a bucket."""

    def blocks_added_here(self, count: int) -> Sequence[int]:
        """The numbers of the blocks, of so many, that this rank adds up."""

    def enqueue(self, what: str, function: Callable[..., Any], *arguments: object) -> Pending[Any]:
        """Run something of this rank in order with the calls of the exchange."""

    def commit(self, loss: float, digest: bytes) -> None:
        """Return when the step counts for everybody."""

    def halt(self, error: Halted) -> None:
        """Stop everybody at this step."""

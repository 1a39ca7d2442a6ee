"""The calls that a reducer makes. A ``Group`` has them, and so have a ``StarExchange`` and a ``TorchExchange``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from phalanx.buffers import Array, DType, LaneShares
from phalanx.collectives import Finish
from phalanx.errors import Halted
from phalanx.transport import Pending


class Exchange(Protocol):
    """Ranks that train together. All ranks make the same calls in the same order, and one thread performs them.

    ``Group`` describes the methods.
    """

    @property
    def rank(self) -> int:
        """The number of this rank."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def lanes(self) -> int | None:
        """The number of lanes of a step."""

    @property
    def host_position(self) -> tuple[int, int]:
        """The position of this rank among the ranks of its host, and their number."""

    @property
    def waited_s(self) -> float:
        """How long this rank has waited for others so far."""

    def allocate(self, shape: int | Sequence[int], dtype: DType | str | type = ..., *, shared: bool = ...) -> Array:
        """Return zeroed memory that the exchange can use without a copy."""

    def all_reduce(self, array: Array) -> Array:
        """Replace the array by the sum of all ranks' arrays."""

    def all_reduce_nowait(self, array: Array) -> Pending[Array]:
        """Begin an ``all_reduce``."""

    def fold_lanes_nowait(
        self,
        pieces: Array,
        out: Array,
        *,
        lanes: int | LaneShares,
        blocks: Sequence[slice],
        finish: Finish,
        wire: DType | None = None,
        own: Mapping[int, Array] | None = None,
    ) -> Pending[Array]:
        """Begin to add up all lanes of a bucket."""

    def blocks_added_here(self, count: int) -> Sequence[int]:
        """Return the numbers of the blocks, of ``count``, that this rank adds up."""

    def enqueue(self, what: str, function: Callable[..., Any], *arguments: object) -> Pending[Any]:
        """Run a function in order with the calls of the exchange."""

    def commit(self, loss: float, digest: bytes) -> None:
        """Return when the step counts on all ranks."""

    def halt(self, error: Halted) -> Halted:
        """Stop all ranks at this step, and return the error in the words that all ranks get."""

"""The state of a simulated worker: hashes instead of tensors, so that whatever enters it wrongly shows for ever."""

import hashlib
from collections.abc import Iterable, Sequence

from phalanx.buffers import Carry
from phalanx.elastic import Holding, MemberState, Stance

BLOCK_BYTES = 8
Sum = tuple[range, bytes]


def hash_of(*parts: bytes) -> bytes:
    """Return a hash that differs if any part does."""
    return hashlib.blake2b(b" ".join(parts), digest_size=BLOCK_BYTES).digest()


def add_up(lanes: int, parts: Iterable[Sum]) -> tuple[Sum, ...]:
    """Return the sums of lanes and pieces, which are in order: as few as there are whole subtrees."""
    carry: Carry[bytes] = Carry(lanes, hash_of)
    for span, value in parts:
        carry.add(span, value)
    return carry.pieces()


class SimulatedReplica(MemberState):
    """Weights and optimizer state in blocks; an element-wise optimizer updates each block alone."""

    def __init__(self, blocks: int, *, is_sharing: bool) -> None:
        super().__init__(blocks, is_sharing=is_sharing)
        self.weights = [hash_of(b"weights", bytes([block])) for block in range(blocks)]
        self.kept = {block: hash_of(b"state", bytes([block])) for block in range(blocks)}

    @property
    def content(self) -> bytes:
        """All weights, one block behind another."""
        return b"".join(self.weights)

    def write(self, part: slice, data: bytes) -> None:
        """Replace a part of the weights."""
        content = bytearray(self.content)
        content[part] = data
        self.weights = [bytes(content[at : at + BLOCK_BYTES]) for at in range(0, len(content), BLOCK_BYTES)]

    def compute(self, lane: int) -> bytes:
        """Return the gradient of a lane of this step."""
        return hash_of(self.content, self.step.to_bytes(4, "big"), lane.to_bytes(4, "big"))

    def update(self, mean: bytes) -> None:
        """Update the blocks that are held here."""
        for block in self.held:
            self.kept[block] = hash_of(self.kept[block], mean)
            self.weights[block] = hash_of(self.weights[block], self.kept[block])

    def evaluate(self) -> bytes:
        """Return what all workers find if they evaluate these weights."""
        return hash_of(b"evaluation", self.content)

    def follow(self, source: Stance, *, is_whole: bool) -> None:
        """Stand where ``source`` does, without optimizer state as yet."""
        super().follow(source, is_whole=is_whole)
        self.kept.clear()

    def hold(self, holding: Holding, rank: int) -> None:
        """Drop the optimizer state that others hold from now on."""
        super().hold(holding, rank)
        self.kept = {block: state for block, state in self.kept.items() if block in self.held}


class CalmRun:
    """A run of one worker to which nothing happens: what every other run must come to."""

    def __init__(self, lanes: int, blocks: int) -> None:
        self._lanes = lanes
        self._replica = SimulatedReplica(blocks, is_sharing=False)
        self._weights: list[tuple[bytes, ...]] = []
        self._kept: list[dict[int, bytes]] = []
        self._means: list[bytes] = []
        self._evaluations: list[bytes] = []

    def weights(self, step: int) -> Sequence[bytes]:
        """Return the weights before a step."""
        self._go_on(step)
        return self._weights[step]

    def kept(self, step: int) -> dict[int, bytes]:
        """Return the optimizer state of each block before a step."""
        self._go_on(step)
        return self._kept[step]

    def mean(self, step: int) -> bytes:
        """Return the sum over all lanes of a step."""
        self._go_on(step)
        return self._means[step]

    def evaluation(self, step: int) -> bytes:
        """Return what is found before a step."""
        self._go_on(step)
        return self._evaluations[step]

    def digest(self, step: int) -> bytes:
        """Return the digest with which a step is committed."""
        return hash_of(*self.weights(step))

    def _go_on(self, step: int) -> None:
        replica = self._replica
        while len(self._weights) <= step:
            lanes = [(range(lane, lane + 1), replica.compute(lane)) for lane in range(self._lanes)]
            ((_, mean),) = add_up(self._lanes, lanes)
            self._weights.append(tuple(replica.weights))
            self._kept.append(dict(replica.kept))
            self._evaluations.append(replica.evaluate())
            self._means.append(mean)
            replica.update(mean)
            replica.advance(is_whole=True)

"""What a member of an elastic run can say of its state, without the tensors."""

from collections.abc import Iterable
from typing import Any

from phalanx.elastic.holders import Holding
from phalanx.elastic.progress import StepProgress
from phalanx.elastic.stance import Stance


class MemberState:
    """At which step a member stands, and what it has of the state of that step.

    At first it holds all ``blocks`` of the optimizer state.
    """

    def __init__(self, blocks: int, *, is_sharing: bool) -> None:
        self.is_sharing = is_sharing
        self.step = 0
        """The next step."""
        self.is_new = True
        """Whether this member has not been in an epoch with others yet."""
        self.held: frozenset[int] = frozenset(range(blocks))
        """The numbers of the blocks whose optimizer state of this step is here. Their weights are, too."""
        self.is_whole = True
        """Whether all weights of this step are here, those of other blocks, too."""

    def describe(self, progress: StepProgress[Any, Any]) -> Stance:
        """Return what this member says at the start of an epoch."""
        return Stance(
            self.step,
            self.is_new,
            tuple(progress.results),
            progress.spans,
            tuple(sorted(self.held)),
            self.is_whole,
            self.is_sharing,
        )

    def follow(self, source: Stance, *, is_whole: bool) -> None:
        """Stand where ``source`` does, without optimizer state as yet. If it ``is_whole``, all weights are here."""
        self.step, self.is_new = source.step, False
        self.held, self.is_whole = frozenset(), is_whole

    def take_over(self, blocks: Iterable[int]) -> None:
        """Hold these blocks, too: their state has arrived."""
        self.held |= frozenset(blocks)

    def hold(self, holding: Holding, rank: int) -> None:
        """Hold what this member holds from now on, and nothing else."""
        self.held = holding.of(rank)

    def advance(self, *, is_whole: bool) -> None:
        """Go on to the next step. The blocks held here are updated. If this ``is_whole``, so are all other weights."""
        self.step += 1
        self.is_whole = is_whole

"""The parameters as an optimizer sees them: leaves, which are blocks whose bounds do not depend on the ranks.

Vectorised code may round the tail of an array differently from its body. Blocks have the same tails wherever they are
updated.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from phalanx.errors import ConfigError
from phalanx.parallel.reduction import NARROW, Block, Layout

Kept = Mapping[torch.nn.Parameter, Mapping[str, Any]]
"""The state of each leaf, by key. Any: tensors, numbers or None."""


class Leaf(NamedTuple):
    """A block as a parameter for an optimizer: the elements of ``parameter``, called ``name``, from ``start`` on."""

    name: str
    parameter: torch.nn.Parameter
    block: torch.nn.Parameter
    start: int = 0

    @property
    def stop(self) -> int:
        """Where the block ends within the parameter."""
        return self.start + int(self.block.numel())

    @property
    def is_whole(self) -> bool:
        """Whether the block has all elements of the parameter."""
        return bool(self.block.numel() == self.parameter.numel())

    @property
    def is_master(self) -> bool:
        """Whether the block has f32 values, from which the weights of a narrow parameter are rounded."""
        return self.parameter.dtype in NARROW


class Leaves:
    """The leaves of all blocks of a layout. This rank updates those that it has chosen, at first all of them."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], layout: Layout) -> None:
        self.leaves: list[Leaf] = []
        self.blocks = tuple(block for bucket in layout.buckets if not bucket.is_buffer for block in bucket.blocks)
        """The block of each leaf."""
        self._gradients: list[torch.Tensor] = []
        for block in self.blocks:
            parameter, name = parameters[block.parameter], layout.parameters[block.parameter].name
            if not parameter.is_contiguous():
                raise ConfigError(
                    f"{name} is not contiguous: assign parameter.data = parameter.data.contiguous() first"
                )
            leaf = Leaf(name, parameter, torch.nn.Parameter(_values(parameter, block)), block.start)
            self.leaves.append(leaf)
        self._chosen: Collection[int] = range(len(self.leaves))

    @property
    def sizes(self) -> list[int]:
        """The elements of each leaf."""
        return [block.stop - block.start for block in self.blocks]

    @property
    def own(self) -> list[Leaf]:
        """The leaves that this rank updates."""
        return [self.leaves[number] for number in self._chosen]

    def choose(self, numbers: Collection[int]) -> None:
        """Update only the leaves with these numbers from now on."""
        self._chosen = sorted(numbers)
        for leaf in self.leaves:
            leaf.block.grad = None

    def follow(self) -> None:
        """Let every leaf be a view of its parameter again, which may have moved to other memory."""
        for block, leaf in zip(self.blocks, self.leaves, strict=True):
            if not leaf.is_master:
                leaf.block.data = _view(leaf.parameter, block)

    def round(self) -> None:
        """Write the values of this rank's masters into their narrow parameters."""
        for number in self._chosen:
            if self.leaves[number].is_master:
                _view(self.leaves[number].parameter, self.blocks[number]).copy_(self.leaves[number].block.data)

    def with_masters(self, kept: Kept, numbers: Iterable[int]) -> Kept:
        """Return the state of some leaves, in which a master is under the key "master"."""
        found: dict[torch.nn.Parameter, Mapping[str, Any]] = {}
        for leaf in (self.leaves[number] for number in numbers):
            master = {"master": leaf.block.data} if leaf.is_master else {}
            if state := {**kept.get(leaf.block, {}), **master}:
                found[leaf.block] = state
        return found

    def take_masters(self, kept: Mapping[torch.nn.Parameter, dict[str, Any]]) -> None:
        """Take the masters out of a loaded state; without one, a master gets the present weights of its parameter."""
        for block, leaf in zip(self.blocks, self.leaves, strict=True):
            master = kept.get(leaf.block, {}).pop("master", None)
            if leaf.is_master:
                leaf.block.data.copy_(_view(leaf.parameter, block) if master is None else master)

    def bind(self, means: Sequence[torch.Tensor]) -> None:
        """Let every block use the mean of its parameter as its gradient from now on."""
        self._gradients = [means[block.parameter][block.start : block.stop] for block in self.blocks]

    def set_gradients(self, is_used: Sequence[bool]) -> None:
        """Give this rank's blocks their gradients; none to blocks of a parameter that no lane used."""
        for number in self._chosen:
            block, leaf, gradient = self.blocks[number], self.leaves[number], self._gradients[number]
            leaf.block.grad = gradient if is_used[block.parameter] else None

    def in_model_order(self) -> list[int]:
        """Return the numbers of the leaves, parameter after parameter, however these are spread over buckets."""
        places = [(block.parameter, block.start) for block in self.blocks]
        return sorted(range(len(places)), key=places.__getitem__)


def check_taken(optimizer: torch.optim.Optimizer, leaves: Sequence[Leaf]) -> None:
    """Raise ConfigError unless the optimizer updates the block of every leaf, once, and nothing else."""
    taken = Counter(id(each) for group in optimizer.param_groups for each in group["params"])
    advice = "make it of [leaf.block for leaf in leaves], and not of model.parameters(); freeze what is not trained"
    for leaf in leaves:
        times = taken.pop(id(leaf.block), 0)
        if times != 1:
            found = f"in it {times} times" if times else "not in it"
            raise ConfigError(f"an engine's optimizer updates every leaf once, but {leaf.name} is {found}: {advice}")
    if taken:
        raise ConfigError(
            f"an engine's optimizer updates the leaves, but {len(taken)} of its parameters are none of the leaves: "
            f"{advice}"
        )


def _values(parameter: torch.nn.Parameter, block: Block) -> torch.Tensor:
    """Return the elements of a block: a view of those of a parameter, or of a narrow one a copy in f32."""
    view = _view(parameter, block)
    return view.float() if parameter.dtype in NARROW else view


def _view(parameter: torch.nn.Parameter, block: Block) -> torch.Tensor:
    return parameter.data.view(-1)[block.start : block.stop]

"""A shard: the blocks of some parameters that a rank updates and sends to the other ranks."""

from collections.abc import Mapping, Sequence

import torch

from phalanx.errors import ConfigError
from phalanx.group import Group
from phalanx.parallel.optimizer import Arrival, Leaf, Weights
from phalanx.parallel.reduction import (
    BLOCK,
    GPU_BLOCK,
    NARROW,
    Block,
    Ownership,
    ParameterSpec,
    Unit,
    Way,
    is_staged,
    lay_out,
    layers_of,
    share_blocks,
    share_units,
)

Named = Sequence[tuple[str, torch.nn.Parameter]]


def share_out(named: Named, unit: Unit, way: Way, before: Sequence[int]) -> Ownership:
    """Return which rank owns which block of these parameters, numbered as in ``named``.

    ``before`` has the number of elements of other parameters that each rank owns already.
    """
    specs = [ParameterSpec(name, parameter.numel()) for name, parameter in named]
    if unit is Unit.BLOCK:
        is_on_gpu = any(is_staged(parameter.device) for _, parameter in named)
        blocks = lay_out(specs, 1, GPU_BLOCK if is_on_gpu else BLOCK).blocks
        layers = [[number] for number in range(len(blocks))]
    else:
        blocks = tuple(Block(number, 0, spec.size) for number, spec in enumerate(specs))
        layers = (
            layers_of([name for name, _ in named]) if unit is Unit.LAYER else [[each] for each in range(len(named))]
        )
    sizes = [sum(blocks[number].stop - blocks[number].start for number in layer) for layer in layers]
    if unit is Unit.BLOCK and way is Way.BALANCED:
        owners = share_blocks(sizes, before)
    else:
        owners = share_units(sizes, before, way)
    owner_of = {number: owner for layer, owner in zip(layers, owners, strict=True) for number in layer}
    return Ownership(blocks, tuple(owner_of[number] for number in range(len(blocks))))


class Shard:
    """The blocks of a group of parameters that this rank updates. Narrow ones are updated in f32 and then rounded.

    Making a shard moves the parameters to memory that the other ranks of the host can read. A parameter that is not
    contiguous stays where it is, because a product with it may round differently elsewhere; a copy is updated and sent.
    """

    def __init__(self, named: Named, ownership: Ownership, group: Group, *, through_host: bool = False) -> None:
        self._copies = {_copy(parameter): parameter for _, parameter in named if not parameter.is_contiguous()}
        copy_of = {parameter: copy for copy, parameter in self._copies.items()}
        updated = [(name, copy_of.get(parameter, parameter)) for name, parameter in named]
        self._weights = (
            [] if group.size == 1 else _move(updated, ownership, group, self._copies, through_host=through_host)
        )
        self._places = [(name, parameter, parameter.data_ptr()) for name, parameter in named]
        own = sorted(ownership.of(group.rank), key=lambda block: (block.parameter, block.start))
        self.leaves = [_make_leaf(*updated[block.parameter], block) for block in own]
        """The blocks of this rank, as parameters for an optimizer."""

    def check(self) -> None:
        """Raise ConfigError if a parameter has moved to other memory: its leaves still use the old memory."""
        for name, parameter, address in self._places:
            if parameter.data_ptr() != address:
                raise ConfigError(
                    f"{name} has other memory than it had: after to(), half() and the like make a new optimizer"
                )

    def begin(self, factor: float | None) -> None:
        """Set the gradient of every leaf, multiplied by ``factor`` if there is one."""
        for copy, parameter in self._copies.items():
            copy.data.copy_(parameter.data)  # the program may have changed it
            copy.grad = parameter.grad
        for leaf in self.leaves:
            gradient = None if leaf.parameter.grad is None else _elements(leaf, leaf.parameter.grad.contiguous())
            if gradient is not None and factor is not None:
                gradient.mul_(factor)
            if leaf.is_master:
                _renew(leaf)
                gradient = None if gradient is None else gradient.float()
            leaf.block.grad = gradient

    def end(self) -> None:
        """Drop the gradients, and write the rounded values into narrow parameters."""
        for leaf in self.leaves:
            leaf.block.grad = None
            if leaf.is_master:
                _elements(leaf, leaf.parameter.data).copy_(leaf.block.data)
        for copy, parameter in self._copies.items():
            copy.grad = None
            if not self._weights:  # else it is copied when all blocks have arrived
                parameter.data.copy_(copy.data)

    def share(self) -> list[Arrival]:
        """Begin to copy the blocks that other ranks have updated. All ranks call this together."""
        return [arrival for weights in self._weights for arrival in weights.begin()]

    def masters(self) -> list[torch.nn.Parameter]:
        """Return the blocks that this rank keeps in f32 because their parameters are narrow."""
        return [leaf.block for leaf in self.leaves if leaf.is_master]

    def take_masters(self, kept: Mapping[torch.nn.Parameter, dict[str, torch.Tensor]]) -> None:
        """Take the f32 values out of a loaded state; if it has none, widen the present weights instead."""
        for leaf in self.leaves:
            found = kept.get(leaf.block, {})
            master = found.pop("master", None)
            if leaf.is_master:
                leaf.block.data.copy_(_elements(leaf, leaf.parameter.data) if master is None else master)
                narrow = {key: each for key, each in found.items() if torch.is_tensor(each) and each.dtype in NARROW}
                found |= {key: each.float() for key, each in narrow.items()}


def _move(
    named: Named,
    ownership: Ownership,
    group: Group,
    copies: Mapping[torch.nn.Parameter, torch.nn.Parameter],
    *,
    through_host: bool,
) -> list[Weights]:
    """Move the parameters to memory of the group, those of one type and device together."""
    alike: dict[object, list[int]] = {}
    for number, (_, parameter) in enumerate(named):
        alike.setdefault((parameter.dtype, parameter.device), []).append(number)
    found = []
    for numbers in alike.values():
        chosen = {number: index for index, number in enumerate(numbers)}
        pairs = [
            (Block(chosen[block.parameter], block.start, block.stop), owner)
            for block, owner in zip(ownership.blocks, ownership.owners, strict=True)
            if block.parameter in chosen
        ]
        blocks, owners = zip(*pairs, strict=True)
        moved = [named[number][1] for number in numbers]
        found.append(Weights(moved, Ownership(blocks, owners), group, copies, through_host=through_host))
    return found


def _copy(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    return torch.nn.Parameter(parameter.data.contiguous(), requires_grad=parameter.requires_grad)


def _make_leaf(name: str, parameter: torch.nn.Parameter, block: Block) -> Leaf:
    is_whole = block.stop - block.start == parameter.numel()
    values = parameter.data if is_whole else parameter.data.view(-1)[block.start : block.stop]
    return Leaf(name, parameter, torch.nn.Parameter(values.float() if values.dtype in NARROW else values), block.start)


def _elements(leaf: Leaf, tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a leaf in a tensor that is shaped like its parameter."""
    return tensor if leaf.is_whole else tensor.view(-1)[leaf.start : leaf.stop]


def _renew(leaf: Leaf) -> None:
    """Take over weights that the program has changed, for example by loading a checkpoint."""
    narrow = _elements(leaf, leaf.parameter.data)
    is_ours = narrow == leaf.block.data.to(narrow.dtype)
    if not is_ours.all():
        leaf.block.data.copy_(torch.where(is_ours, leaf.block.data, narrow.float()))

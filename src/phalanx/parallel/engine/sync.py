"""The start of an epoch: the members tell each other what they hold, and newcomers get the state from those who do."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from phalanx.buffers import Array, even_part, slices
from phalanx.group import Group
from phalanx.parallel.engine.report import Report
from phalanx.parallel.optimizer import Leaf, from_tensor, to_tensor
from phalanx.transport import Pending

_CHUNK_BYTES = 4 << 20
_AHEAD = 2  # chunks on their way from each holder, so that a link does not wait while one is copied


class StateSpec(msgspec.Struct, frozen=True, array_like=True):
    """One value of the optimizer's state: ``key`` of the leaf with this number."""

    leaf: int
    key: str
    dtype: str
    shape: tuple[int, ...]


class Stance(msgspec.Struct, frozen=True):
    """What a member says at the start of an epoch.

    ``step`` is the next step of its state, and ``is_new`` says that it has never been in an epoch with others. It has
    kept the ``lanes`` of that step. The rest is for newcomers: the ``report`` of the last step, the ``results`` of what
    the members have found together since then, the ``settings`` of the optimizer's groups, the values of its ``state``,
    and the user's own ``extra``.
    """

    step: int
    is_new: bool
    report: Report | None
    results: list[float | bytes]
    lanes: list[int]
    settings: list[dict[str, Any]]  # Any: numbers, words and None, as optimizers have them
    state: list[StateSpec]
    extra: bytes


class Roles(NamedTuple):
    """Which members hold the latest state, which of them knows most, and which need the state."""

    holders: tuple[int, ...]
    source: int
    newcomers: tuple[int, ...]
    is_first: bool
    """Whether nobody has been in an epoch before: then all begin with the weights of rank 0."""


def choose_roles(stances: Sequence[Stance]) -> Roles:
    """Decide who gives and who gets the state."""
    latest = max(each.step for each in stances)
    here = [rank for rank, each in enumerate(stances) if each.step == latest]
    old = [rank for rank in here if not stances[rank].is_new]
    holders = old or here
    source = max(holders, key=lambda rank: (len(stances[rank].results), -rank))
    newcomers = tuple(rank for rank in range(len(stances)) if rank not in holders)
    return Roles(tuple(holders), source, newcomers, is_first=not old)


def kept_lanes(stances: Sequence[Stance]) -> list[list[int]]:
    """Return the lanes of the present step that each member has kept."""
    latest = max(each.step for each in stances)
    return [each.lanes if each.step == latest else [] for each in stances]


def tell(group: Group, stance: Stance) -> list[Stance]:
    """Return the stances of all members, by rank."""
    told = group.all_gather_unequal(np.frombuffer(msgspec.msgpack.encode(stance), np.uint8))
    return [msgspec.msgpack.decode(each.tobytes(), type=Stance) for each in told]


def describe_state(optimizer: torch.optim.Optimizer, leaves: Sequence[Leaf]) -> list[StateSpec]:
    """Return what the optimizer keeps for its leaves, in a fixed order."""
    return [
        StateSpec(number, key, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for number, key, tensor in _state_of(optimizer, leaves)
    ]


def list_state(optimizer: torch.optim.Optimizer, leaves: Sequence[Leaf]) -> list[torch.Tensor]:
    """Return the tensors that ``describe_state`` describes."""
    return [tensor for _, _, tensor in _state_of(optimizer, leaves)]


def make_state(specs: Iterable[StateSpec], leaves: Sequence[Leaf], *, on_device: bool) -> list[torch.Tensor]:
    """Return room for the values that a holder describes, on the devices on which an optimizer keeps them."""
    return [
        torch.empty(
            spec.shape,
            dtype=getattr(torch, spec.dtype),
            device=leaves[spec.leaf].block.device if spec.shape or on_device else "cpu",
        )
        for spec in specs
    ]


def load_state(
    optimizer: torch.optim.Optimizer,
    leaves: Sequence[Leaf],
    specs: Iterable[StateSpec],
    tensors: Iterable[torch.Tensor],
) -> None:
    """Replace the optimizer's state by what has arrived."""
    optimizer.state.clear()
    for spec, tensor in zip(specs, tensors, strict=True):
        optimizer.state[leaves[spec.leaf].block][spec.key] = from_tensor(tensor)


def transfer(group: Group, roles: Roles, tensors: Sequence[torch.Tensor]) -> None:
    """Copy tensors from the holders to the newcomers. Each holder sends an even part, and all send at the same time."""
    rows = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() for tensor in tensors]
    total = sum(map(len, rows))
    parts = [even_part(total, len(roles.holders), number) for number in range(len(roles.holders))]
    if group.rank in roles.holders:
        _send(group, roles.newcomers, rows, parts[roles.holders.index(group.rank)])
    elif group.rank in roles.newcomers:
        _receive(group, roles.holders, rows, parts)
        for tensor, row in zip(tensors, rows, strict=True):
            tensor.data.copy_(torch.from_numpy(row).view(tensor.dtype).view(tensor.shape))


def _send(group: Group, newcomers: Sequence[int], rows: Sequence[Array], part: slice) -> None:
    pending: list[Pending[None]] = []
    for chunk in slices(part, _CHUNK_BYTES):
        data = np.concatenate(list(_cut(rows, chunk)))
        pending += [group.send_nowait(data, rank) for rank in newcomers]
        while len(pending) > _AHEAD * len(newcomers):
            pending.pop(0).wait()
    for each in pending:
        each.wait()


def _receive(group: Group, holders: Sequence[int], rows: Sequence[Array], parts: Sequence[slice]) -> None:
    arriving: list[tuple[slice, Array, Pending[Array]]] = []
    chunks = [list(slices(part, _CHUNK_BYTES)) for part in parts]
    rounds = max(map(len, chunks))
    for number in range(rounds + _AHEAD):
        for holder, its in zip(holders, chunks, strict=True):
            if number < len(its):
                data = np.empty(its[number].stop - its[number].start, np.uint8)
                arriving.append((its[number], data, group.recv_nowait(data, holder)))
        while arriving and (number >= rounds or len(arriving) > _AHEAD * len(holders)):
            chunk, data, pending = arriving.pop(0)
            pending.wait()
            start = 0
            for view in _cut(rows, chunk):
                view[:] = data[start : start + len(view)]
                start += len(view)


def _cut(rows: Sequence[Array], chunk: slice) -> Iterator[Array]:
    """Yield the views that make up some bytes of all rows one behind another."""
    end = 0
    for row in rows:
        begin, end = end, end + len(row)
        if begin < chunk.stop and chunk.start < end:
            yield row[max(chunk.start - begin, 0) : chunk.stop - begin]


def _state_of(optimizer: torch.optim.Optimizer, leaves: Sequence[Leaf]) -> Iterator[tuple[int, str, torch.Tensor]]:
    for number, leaf in enumerate(leaves):
        for key, value in sorted(optimizer.state.get(leaf.block, {}).items()):
            if value is not None:
                yield number, key, to_tensor(value)

"""Calls with arrays of unequal lengths. Each has two halves: the ranks tell each other the lengths, then the data."""

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from phalanx.buffers import Array, DType, consecutive, even_parts
from phalanx.collectives import Call, Team
from phalanx.errors import BadFrame, CollectiveMismatch, ConfigError
from phalanx.group.arguments import check_rank, flatten
from phalanx.group.operations import Operation, make_signature
from phalanx.group.tensors import as_array, is_tensor, like, to_tensor
from phalanx.wire import Collective

Given = TypeVar("Given")

_MOST_AXES = 32
_MOST_ELEMENTS = 2**48  # far more than any memory holds, and few enough to add up


class UnequalOperations:
    """Makes operations of one team out of arrays that may differ in the length of their first axis.

    A peer that claims to send an array of more than ``most_elements`` is not believed.
    """

    def __init__(self, team: Team, most_elements: int = _MOST_ELEMENTS) -> None:
        self._team = team
        self._most_elements = most_elements

    def all_gather(self, given: Given) -> Operation[list[Given]]:
        """Collect the arrays of all ranks."""
        array = as_array(given, "array")
        flat, dtype = flatten(array, "array")
        if array.ndim == 0:
            raise ConfigError("a single value has no length: use all_gather")
        signature = make_signature(Collective.ALL_GATHER, DType.I64, 3 * self._team.size)
        listed: list[Given] = []
        return Operation(signature, self._all_gather, (given, array, flat, dtype, listed), listed)

    def all_to_all(self, given: Sequence[Given]) -> Operation[list[Given]]:
        """Send array r to rank r, and collect the arrays for this rank."""
        arrays, dtype = self._check_list(given)
        size = self._team.size
        signature = make_signature(Collective.ALL_GATHER, DType.I64, (size + 2) * size)
        listed: list[Given] = []
        return Operation(signature, self._all_to_all, (given[0], arrays, dtype, listed), listed)

    def scatter(self, given: Sequence[Given] | None, root: int) -> Operation[Given]:
        """Give array r of the root to rank r."""
        is_root = check_rank(root, "root", self._team.size) == self._team.rank
        if is_root and given is None:
            raise ConfigError(f"the root must pass a list of {self._team.size} arrays to scatter_unequal")
        arrays, dtype = self._check_list(given) if is_root and given is not None else ([], DType.U8)
        words = np.zeros(self._team.size + 3 + _MOST_AXES, np.int64)
        if arrays:
            facts = [dtype.code, is_tensor(given and given[0]), arrays[0].ndim - 1, *arrays[0].shape[1:]]
            words[: self._team.size] = [len(array) for array in arrays]
            words[self._team.size : self._team.size + len(facts)] = facts
        signature = make_signature(Collective.BROADCAST, DType.I64, len(words), root=root)
        made: list[Any] = []  # Any: an array, or a tensor
        nothing: Any = None  # Any: as above
        return Operation(signature, self._scatter, (words, arrays, root, made), nothing, read=lambda: made[0])

    def gather(self, given: Array, root: int) -> Operation[list[Array]]:
        """Collect rows of the arrays of all ranks on the root; the list stays empty on other ranks."""
        flat, dtype = flatten(given, "array")
        signature = make_signature(Collective.ALL_GATHER, DType.I64, 4 * self._team.size)
        listed: list[Array] = []
        return Operation(signature, self._gather, (flat, dtype, root, listed), listed)

    def _gather(self, call: Call, flat: Array, dtype: DType, root: int, listed: list[Array]) -> None:
        own, names = self._team.rank, self._team.names
        told = self._tell(call, [len(flat), root, 1, dtype.code])
        self._check_rows(told[:, 2], told[:, 3], 1, dtype)
        for rank, its_root in enumerate(told[:, 1].tolist()):
            if its_root != root:
                words = f"gather to rank {its_root}", names[own], f"gather to rank {root}"
                raise CollectiveMismatch.between(names[rank], *words)
        lengths = told[:, 0].tolist()
        parts = consecutive(lengths)
        target = np.empty(parts[-1].stop, dtype.numpy) if own == root else None
        data = second_half(call, Collective.GATHER, dtype, parts[-1].stop, root)
        self._team.gather(data, flat, target, lengths)
        if target is not None:
            listed += [target[part] for part in parts]

    def _all_gather(
        self, call: Call, given: Given, array: Array, flat: Array, dtype: DType, listed: list[Given]
    ) -> None:
        row = math.prod(array.shape[1:])
        told = self._tell(call, [array.shape[0], row, dtype.code])
        self._check_rows(told[:, 1], told[:, 2], row, dtype)
        parts = consecutive((told[:, 0] * row).tolist())
        target = np.empty(parts[-1].stop, dtype.numpy)
        self._team.all_gather(second_half(call, Collective.ALL_GATHER, dtype, len(target)), flat, parts, target)
        rows = zip(parts, told[:, 0].tolist(), strict=True)
        listed += [like(given, _shape(target[part], count, array)) for part, count in rows]

    def _all_to_all(self, call: Call, given: Given, arrays: Sequence[Array], dtype: DType, listed: list[Given]) -> None:
        row, size = math.prod(arrays[0].shape[1:]), self._team.size
        told = self._tell(call, [*map(len, arrays), row, dtype.code])
        self._check_rows(told[:, size], told[:, size + 1], row, dtype)
        lengths = (told[:, :size] * row).tolist()
        arriving = consecutive(each[self._team.rank] for each in lengths)
        target = np.empty(arriving[-1].stop, dtype.numpy)
        total = sum(map(sum, lengths))
        data = second_half(call, Collective.ALL_TO_ALL, dtype, total)
        self._team.all_to_all(data, _join(arrays, dtype), target, lengths)
        rows = zip(arriving, told[:, self._team.rank].tolist(), strict=True)
        listed += [like(given, _shape(target[part], count, arrays[0])) for part, count in rows]

    def _scatter(self, call: Call, words: Array, arrays: Sequence[Array], root: int, made: list[Any]) -> None:
        size, own = self._team.size, self._team.rank
        self._team.broadcast(call, words)
        code, is_torch, axes, *dimensions = words[size:].tolist()
        shape = dimensions[:axes]
        row = math.prod(shape)
        if not 0 <= axes <= _MOST_AXES or not self._are_lengths(words[:size], row) or min(shape, default=0) < 0:
            raise self._garbled(root)
        dtype, lengths = self._dtype(code, root), (words[:size] * row).tolist()
        target = np.empty(lengths[own], dtype.numpy)
        data = second_half(call, Collective.SCATTER, dtype, sum(lengths), root)
        self._team.scatter(data, _join(arrays, dtype) if own == root else None, target, lengths)
        found = target.reshape(int(words[own]), *shape)
        made.append(to_tensor(found) if is_torch else found)

    def _check_list(self, given: Sequence[Given]) -> tuple[list[Array], DType]:
        """Return the arrays; ConfigError unless there is one for each rank, with rows of one type and shape."""
        if not isinstance(given, list | tuple) or len(given) != self._team.size:
            raise ConfigError(f"pass a list of {self._team.size} arrays, one for each rank")
        arrays = [as_array(each, f"array {number}") for number, each in enumerate(given)]
        dtypes = [flatten(array, f"array {number}")[1] for number, array in enumerate(arrays)]
        for number, (array, dtype) in enumerate(zip(arrays, dtypes, strict=True)):
            if not 1 <= array.ndim <= _MOST_AXES:
                raise ConfigError(f"array {number} has {array.ndim} axes: pass arrays with 1 to {_MOST_AXES}")
            if (dtype, array.shape[1:]) != (dtypes[0], arrays[0].shape[1:]):
                words = f"array {number} has rows of {dtype.label} {array.shape[1:]}, and array 0 has rows of"
                raise ConfigError(f"{words} {dtypes[0].label} {arrays[0].shape[1:]}: pass rows of one type and shape")
        return arrays, dtypes[0]

    def _tell(self, call: Call, words: Sequence[int]) -> Array:
        """Return what every rank has told: a row of numbers for each."""
        size = self._team.size
        told = np.empty((size, len(words)), np.int64)
        self._team.all_gather(call, np.array(words, np.int64), even_parts(told.size, size), told.reshape(-1))
        for rank, row in enumerate(told):
            if not self._are_lengths(row[:-2], int(row[-2])):
                raise self._garbled(rank)
        return told

    def _check_rows(self, rows: Array, codes: Array, row: int, dtype: DType) -> None:
        names = self._team.names
        for rank, (its_row, its_code) in enumerate(zip(rows.tolist(), codes.tolist(), strict=True)):
            if (its_row, its_code) != (row, dtype.code):
                theirs = f"rows of {its_row} {self._dtype(its_code, rank).label}"
                ours = f"rows of {row} {dtype.label}"
                raise CollectiveMismatch.between(names[rank], theirs, names[self._team.rank], ours)

    def _dtype(self, code: int, rank: int) -> DType:
        try:
            return DType.from_code(code)
        except ValueError:
            raise self._garbled(rank) from None

    def _are_lengths(self, lengths: Array, row: int) -> bool:
        """Return whether arrays could be so long, with ``row`` elements a row."""
        values = lengths.tolist()
        return row >= 0 and min(values) >= 0 and sum(values) * row <= self._most_elements

    def _garbled(self, rank: int) -> BadFrame:
        name = self._team.names[rank]
        return BadFrame(f"rank {name} told lengths or types of arrays that make no sense", peer=name)


def second_half(call: Call, collective: Collective, dtype: DType, count: int, root: int | None = None) -> Call:
    """Return the call that moves the data.

    Without a group, this half is not compared with other ranks: a slow rank may still be in the first half.
    """
    return call._replace(signature=make_signature(collective, dtype, count, root=root), group="")


def _join(arrays: Sequence[Array], dtype: DType) -> Array:
    """Return the elements of all arrays, one after another."""
    joined = np.empty(sum(array.size for array in arrays), dtype.numpy)
    for part, array in zip(consecutive(array.size for array in arrays), arrays, strict=True):
        joined[part] = flatten(array, "array")[0]
    return joined


def _shape(flat: Array, rows: int, pattern: Array) -> Array:
    """Return elements in so many rows like those of ``pattern``, and with its type."""
    return flat.view(pattern.dtype).reshape(rows, *pattern.shape[1:])

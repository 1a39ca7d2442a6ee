"""The collectives of one ``torch.distributed`` group, on tensors. Both shells, for old and new torch, use this core."""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phalanx.buffers import Array
from phalanx.errors import CollectiveMismatch, ConfigError, PhalanxError
from phalanx.group import Group
from phalanx.torch.device import DeviceStaging
from phalanx.torch.sparse import add_sparse
from phalanx.torch.tensors import TorchReduction, as_array, find_reduction
from phalanx.torch.work import CompletedCall, Completers, Result, TensorWork
from phalanx.transport import SerialExecutor

Options = Any  # the option classes of torch.distributed, which is not type-checked
Action = Callable[[list[Array], list[Array]], object]

_UNSET = timedelta(milliseconds=-1)
_log = logging.getLogger("phalanx")


class TensorCalls:
    """Carries out the collectives of one group on tensors, one after another.

    A call that its caller waits for runs in the caller's thread if no other call is going on.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.sequence = 0
        self._executor = SerialExecutor(f"phalanx-torch-{group.rank}")
        self._completers = Completers(f"phalanx-future-{group.rank}")
        self._done = TensorWork(CompletedCall(), (), self._completers)

    # Reductions

    def all_reduce(self, tensors: Sequence[Tensor], opts: Options) -> TensorWork:
        """Reduce each tensor over all ranks, in place."""
        reduction, timeout_s = find_reduction(opts.reduceOp), self._timeout_s(opts)
        for tensor in tensors:
            reduction.check(tensor)
        if reduction.factor is None and not opts.asyncOp and _is_plain(tensors):
            return self._all_reduce_now(tensors, reduction, timeout_s)
        if tensors[0].is_sparse:
            return self._run(
                "all_reduce", partial(add_sparse, self.group, tensors, reduction, timeout_s), opts, tensors
            )

        def act(inputs: list[Array], outputs: list[Array]) -> None:
            for given, out in zip(inputs, outputs, strict=True):
                self.group.all_reduce(given, reduction.op, out=None if given is out else out, timeout_s=timeout_s)

        prepared = tensors if reduction.factor is None else [reduction.prepare(each) for each in tensors]
        return self._begin("all_reduce", act, prepared, tensors, opts)

    def _all_reduce_now(
        self, tensors: Sequence[Tensor], reduction: TorchReduction, timeout_s: float | None
    ) -> TensorWork:
        """Do what most calls ask for without a detour, which would cost as much as a small exchange."""
        self.sequence += 1
        array = as_array(tensors[0])
        self._executor.run("all_reduce", partial(self.group.all_reduce, array, reduction.op, timeout_s=timeout_s))
        return self._done  # nobody looks at the result of a call that was waited for

    def reduce(self, tensors: Sequence[Tensor], opts: Options) -> TensorWork:
        """Reduce each tensor over all ranks, in place on the root; other ranks' tensors stay as they are."""
        reduction, root, timeout_s = find_reduction(opts.reduceOp), opts.rootRank, self._timeout_s(opts)
        for tensor in tensors:
            reduction.check(tensor)

        def act(inputs: list[Array], outputs: list[Array]) -> None:
            for given, out in zip(inputs, outputs or inputs, strict=True):
                self.group.reduce(given, root, reduction.op, timeout_s=timeout_s)
                if outputs and given is not out:
                    np.copyto(out, given)

        prepared = [reduction.prepare(each) for each in tensors]
        return self._begin("reduce", act, prepared, tensors if root == self.group.rank else (), opts, tensors)

    def reduce_scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Options
    ) -> TensorWork:
        """Reduce list ``inputs[i]``, and put this rank's element of it into ``outputs[i]``."""
        reduction, timeout_s = find_reduction(opts.reduceOp), self._timeout_s(opts)
        for listed in inputs:
            self._check_count(listed, "reduce_scatter")
            reduction.check(listed[0])
        joined = [torch.cat([reduction.prepare(each).reshape(-1) for each in listed]) for listed in inputs]
        lengths = [[each.numel() for each in listed] for listed in inputs]

        def act(given: list[Array], outs: list[Array]) -> None:
            for array, out, counts in zip(given, outs, lengths, strict=True):
                self._reduce_scatter(array, out, counts, reduction, timeout_s)

        return self._begin("reduce_scatter", act, joined, outputs, opts)

    def reduce_scatter_single(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Options) -> TensorWork:
        """Reduce each input over all ranks, and put this rank's part of it into the output."""
        reduction, timeout_s, size = find_reduction(opts.reduceOp), self._timeout_s(opts), self.group.size
        for output, given in zip(outputs, inputs, strict=True):
            reduction.check(given)
            if given.numel() != size * output.numel():
                raise ConfigError(
                    f"reduce_scatter: the input must have {size} times the {output.numel()} elements of the output, "
                    f"not {given.numel()}"
                )

        def act(given: list[Array], outs: list[Array]) -> None:
            for array, out in zip(given, outs, strict=True):
                self._reduce_scatter(array, out, [len(out)] * size, reduction, timeout_s)

        return self._begin("reduce_scatter", act, [reduction.prepare(each) for each in inputs], outputs, opts)

    def _reduce_scatter(
        self, array: Array, out: Array, counts: Sequence[int], reduction: TorchReduction, timeout_s: float | None
    ) -> None:
        size, rank = self.group.size, self.group.rank
        if len(set(counts)) == 1:
            shaped = array.reshape(size, -1) if len(out) else array.reshape(size, 0)
            self.group.reduce_scatter(shaped, reduction.op, out=out.reshape(1, -1), timeout_s=timeout_s)
            return
        whole = self.group.all_reduce(array.copy(), reduction.op, timeout_s=timeout_s)
        begin = sum(counts[:rank])
        np.copyto(out, whole[begin : begin + counts[rank]])

    # Copies

    def broadcast(self, tensors: Sequence[Tensor], opts: Options) -> TensorWork:
        """Make each tensor equal to the root's."""
        root, timeout_s = opts.rootRank, self._timeout_s(opts)

        def act(_: list[Array], outputs: list[Array]) -> None:
            for array in outputs:
                self.group.broadcast(array, root, timeout_s=timeout_s)

        return self._begin("broadcast", act, tensors, tensors, opts)

    def all_gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Options) -> TensorWork:
        """Put ``inputs[i]`` of every rank into the list ``outputs[i]``."""
        timeout_s = self._timeout_s(opts)
        for listed in outputs:
            self._check_count(listed, "all_gather")

        def act(given: list[Array], outs: list[Array]) -> None:
            size = self.group.size
            for number, array in enumerate(given):
                targets = outs[number * size : (number + 1) * size]
                if len({len(each) for each in targets}) == 1:
                    found = list(self.group.all_gather(array, timeout_s=timeout_s))
                else:
                    found = self.group.all_gather_unequal(array, timeout_s=timeout_s)
                for target, part in zip(targets, found, strict=True):
                    np.copyto(target, part)

        flat = [tensor for listed in outputs for tensor in listed]
        return self._begin("all_gather", act, inputs, flat, opts, outputs)

    def all_gather_single(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Options) -> TensorWork:
        """Put the inputs of all ranks, one behind the other, into the outputs."""
        timeout_s, size = self._timeout_s(opts), self.group.size
        for output, given in zip(outputs, inputs, strict=True):
            if output.numel() != size * given.numel():
                raise ConfigError(
                    f"all_gather: the output must have {size} times the {given.numel()} elements of the input, "
                    f"not {output.numel()}"
                )

        def act(given: list[Array], outs: list[Array]) -> None:
            for array, out in zip(given, outs, strict=True):
                self.group.all_gather(array, out=out.reshape(size, len(array)), timeout_s=timeout_s)

        return self._begin("all_gather", act, inputs, outputs, opts)

    def gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Options) -> TensorWork:
        """Put the inputs of all ranks into the root's list."""
        root, timeout_s = opts.rootRank, self._timeout_s(opts)
        if outputs:
            self._check_count(outputs[0], "gather")

        def act(given: list[Array], outs: list[Array]) -> None:
            found = self.group.gather(given[0], root, timeout_s=timeout_s)
            for target, part in zip(outs, () if found is None else found, strict=True):
                np.copyto(target, part)

        return self._begin("gather", act, inputs, outputs[0] if outputs else (), opts)

    def scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Options) -> TensorWork:
        """Put element r of the root's list into the output of rank r."""
        root, timeout_s = opts.rootRank, self._timeout_s(opts)
        if inputs:
            self._check_count(inputs[0], "scatter")

        def act(given: list[Array], outs: list[Array]) -> None:
            stacked = np.stack(given).view(given[0].dtype) if given else None
            self.group.scatter(stacked, outs[0], root, timeout_s=timeout_s)

        return self._begin("scatter", act, inputs[0] if inputs else (), outputs, opts)

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Options) -> TensorWork:
        """Send ``inputs[r]`` to rank r, and put what rank r sent into ``outputs[r]``."""
        timeout_s = self._timeout_s(opts)
        self._check_count(inputs, "all_to_all")
        self._check_count(outputs, "all_to_all")
        act = partial(self._all_to_all, timeout_s)
        return self._begin("all_to_all", act, inputs, outputs, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        given: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Options,
    ) -> TensorWork:
        """Send rows of the input to each rank: as many as ``input_splits`` says, or equally many."""
        timeout_s = self._timeout_s(opts)
        sent, received = self._rows(given, input_splits), self._rows(output, output_splits)

        def act(arrays: list[Array], outs: list[Array]) -> None:
            self._all_to_all(timeout_s, _cut(arrays[0], sent), _cut(outs[0], received))

        return self._begin("all_to_all", act, [given], [output], opts)

    def _all_to_all(self, timeout_s: float | None, sent: list[Array], received: list[Array]) -> None:
        """Exchange parts of unequal lengths: first the lengths, then the parts, filled up to the longest."""
        group = self.group
        told = group.all_gather(np.array([len(part) for part in sent], np.int64), timeout_s=timeout_s)
        for rank, (here, there) in enumerate(zip(map(len, received), told[:, group.rank].tolist(), strict=True)):
            if here != there:
                ours = f"all_to_all with {here} elements from rank {rank}"
                raise CollectiveMismatch.between(
                    rank, f"all_to_all with {there} for rank {group.rank}", group.rank, ours
                )
        longest = int(told.max())
        packed = np.empty((group.size, longest), sent[0].dtype)
        for row, part in zip(packed, sent, strict=True):
            row[: len(part)] = part
        found = group.all_to_all(packed, timeout_s=timeout_s)
        for target, row in zip(received, found, strict=True):
            np.copyto(target, row[: len(target)])

    def barrier(self, opts: Options) -> TensorWork:
        """Wait for all ranks."""
        timeout_s = self._timeout_s(opts)
        return self._run("barrier", lambda: self.group.barrier(timeout_s=timeout_s), opts, ())

    def wait_for_all(self, opts: Options) -> None:
        """Return when all ranks have called this; the error names the ranks that have not."""
        timeout_s = self._timeout_s(opts)
        self._executor.run("monitored_barrier", lambda: self.group.barrier(timeout_s=timeout_s))

    # Ending

    def close(self) -> None:
        """Finish all calls, and leave the group."""
        self._executor.close()
        self._completers.close()
        try:
            self.group.close()
        except PhalanxError as error:
            _log.warning("rank %d could not leave its group properly: %s", self.group.rank, error)

    # Doing

    def _begin(
        self,
        what: str,
        act: Action,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        opts: Options,
        result: Result | None = None,
    ) -> TensorWork:
        """Call ``act`` with the arrays of all inputs and outputs. An input that is an output has the same array."""
        result = outputs if result is None else result
        first = next(iter((*inputs, *outputs)), None)
        if first is not None and first.device.type != "cpu":
            staging = DeviceStaging(inputs, outputs)
            return self._run(what, partial(staging.run, partial(self._act, act)), opts, result, (first.device,))
        return self._run(what, partial(self._act, act, inputs, outputs), opts, result)

    def _act(self, act: Action, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Call ``act`` with arrays; tensors that are not contiguous go through copies that are."""
        dense = {id(each): each.contiguous() for each in (*inputs, *outputs)}
        arrays = {key: as_array(each) for key, each in dense.items()}
        act([arrays[id(each)] for each in inputs], [arrays[id(each)] for each in outputs])
        for output in outputs:
            if dense[id(output)] is not output:
                output.detach().copy_(dense[id(output)])

    def _run(
        self,
        what: str,
        act: Callable[[], object],
        opts: Options,
        result: Result,
        devices: Sequence[torch.device] = (),
    ) -> TensorWork:
        self.sequence += 1
        if opts.asyncOp:
            return TensorWork(self._executor.submit(what, act), result, self._completers, devices)
        return TensorWork(CompletedCall(self._executor.run(what, act)), result, self._completers, devices)

    def _timeout_s(self, opts: Options) -> float | None:
        timeout: timedelta = opts.timeout
        return None if timeout == _UNSET else timeout.total_seconds()

    def _check_count(self, tensors: Sequence[Tensor], what: str) -> None:
        if len(tensors) != self.group.size:
            raise ConfigError(
                f"{what}: the list must have a tensor for each of {self.group.size} ranks, not {len(tensors)}"
            )

    def _rows(self, tensor: Tensor, splits: Sequence[int]) -> list[int]:
        """Return how many elements each rank gets."""
        size, rows = self.group.size, tensor.shape[0] if tensor.dim() else 1
        row = tensor.numel() // rows if rows else 0
        if not splits:
            if rows % size:
                raise ConfigError(f"all_to_all: {rows} rows cannot be split evenly over {size} ranks: pass split sizes")
            return [rows // size * row] * size
        if len(splits) != size or sum(splits) != rows:
            raise ConfigError(
                f"all_to_all: split sizes {list(splits)} must be {size} numbers that add up to {rows} rows"
            )
        return [count * row for count in splits]


def _is_plain(tensors: Sequence[Tensor]) -> bool:
    """Return whether this is one tensor whose memory can be used as it is."""
    tensor = tensors[0]
    return len(tensors) == 1 and tensor.device.type == "cpu" and not tensor.is_sparse and tensor.is_contiguous()


def _cut(array: Array, counts: Sequence[int]) -> list[Array]:
    """Return consecutive parts of an array. Elements that travel as bytes are as many bytes each."""
    ends = np.cumsum(counts).tolist()
    width = len(array) // (ends[-1] or 1)
    return [array[(end - count) * width : end * width] for count, end in zip(counts, ends, strict=True)]

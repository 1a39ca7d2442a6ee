"""An exchange over a group of ``torch.distributed``: NCCL, Gloo, MPI, or whatever backend is there."""

import copy
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist

from phalanx.buffers import CHUNK, Array, Carry, DType, LaneShares, even_part, slices, square_norm
from phalanx.collectives import Finish
from phalanx.errors import ConfigError, Halted, PhalanxError, RemoteError
from phalanx.group import check_lanes
from phalanx.parallel.reduction.roll_call import RollCall
from phalanx.transport import Deadline, Pending, SerialExecutor, allocate_pages

_LOOK_S = 0.25  # how often a rank that waits looks whether another one has failed
_POLL_S = 5e-5  # how often it asks a GPU, which wakes nobody

_OLD_NAME = "all_gather_into_tensor"  # of all_gather_single, before torch 2.13
_gather_single: Any = getattr(dist, "all_gather_single", None) or getattr(dist, _OLD_NAME, None)  # Any: untyped


class TorchExchange:
    """The ranks of a ``torch.distributed`` group, by default of the default group, which train in exact lanes.

    To add up a bucket, each rank sends every other rank its part of the pieces (``all_to_all_single``), adds up its own
    part in the order of the tree over lanes, and gets the other sums (``all_gather_single``). Each rank sends as
    many bytes as in an all-reduce, if its lanes make one piece. Sums have the same bits as in a ``Group``. With NCCL,
    buckets of a model on a GPU stay there.

    The members cannot change. A step counts when the summary of all ranks has arrived; nobody else is asked. The
    exchange makes its calls in a thread of its own, so a program that uses the group too passes one of
    ``torch.distributed.new_group()`` here. Every call ends within ``timeout_s``. If it fails, so do all later ones.
    """

    host_position = (0, 1)
    waited_s = 0.0
    """Always 0: waiting for other ranks cannot be told from the exchange here."""

    def __init__(
        self, process_group: "dist.ProcessGroup | None" = None, *, lanes: int = 8, timeout_s: float = 300.0
    ) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ConfigError(
                "there is no torch.distributed group yet: call torch.distributed.init_process_group, and start the "
                "program with torchrun, srun or mpirun"
            )
        self._group = process_group or dist.group.WORLD
        self.rank, self.size = dist.get_rank(self._group), dist.get_world_size(self._group)
        if self.rank < 0:
            raise ConfigError("this process is not in that torch.distributed group: pass a group that it belongs to")
        check_lanes(lanes, self.size)
        self.lanes = lanes
        self._timeout_s = timeout_s
        backends = dict(each.split(":", 1) for each in dist.get_backend_config(self._group).split(","))
        self.is_on_gpu = backends.get("cuda") == "nccl"
        """Whether buckets on a GPU are exchanged there. Gloo and MPI get them through memory of the host."""
        gpu = torch.device("cuda", torch.cuda.current_device()) if self.is_on_gpu else None
        self._device = torch.device("cpu") if "cpu" in backends or gpu is None else gpu
        self.stream: torch.cuda.Stream | None = torch.cuda.Stream(gpu) if gpu else None
        """The stream on which a GPU exchanges."""
        self._roll_call = RollCall(_store_of(self._group), self.rank, self.size)
        self._scratch: dict[tuple[str, torch.device], torch.Tensor] = {}
        self._failure: PhalanxError | None = None
        self._executor = SerialExecutor(f"phalanx-exchange-{self.rank}")

    # What a reducer calls

    def allocate(
        self,
        shape: int | Sequence[int],
        dtype: DType | str | type = np.float32,
        *,
        shared: bool = False,  # noqa: ARG002 - nothing is shared: everything travels
    ) -> Array:
        """Return ordinary memory."""
        kind = DType.parse(dtype).numpy
        return allocate_pages(int(np.prod(shape)) * kind.itemsize).view(kind).reshape(shape)

    def blocks_added_here(self, count: int) -> Sequence[int]:
        """Return the blocks that this rank measures, so that each is measured once."""
        return range(count)[even_part(count, self.size, self.rank)]

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
        """Begin to add up all lanes of a bucket in memory of the host."""
        assert wire is None, "an engine exchanges f32"
        assert own is None, "everything travels"
        rows, target = torch.from_numpy(pieces), torch.from_numpy(out)
        return self._submit("the exchange of a bucket", self._fold_on_host, rows, target, lanes, blocks, finish)

    def fold_tensors_nowait(
        self, pieces: torch.Tensor, out: torch.Tensor, *, lanes: LaneShares, blocks: Sequence[slice], finish: Finish
    ) -> Pending[None]:
        """Begin to add up all lanes of a bucket on the device that it is on."""
        return self._submit("the exchange of a bucket", self._fold, pieces, out, lanes, blocks, finish)

    def all_reduce(self, array: Array) -> Array:
        """Replace an array of f64 by the sum of all ranks' arrays, of which one is not zero, or all are integers."""
        return self._run("an all_reduce", self._all_reduce, array)

    def all_reduce_nowait(self, array: Array) -> Pending[Array]:
        """Begin an ``all_reduce``."""
        return self._submit("an all_reduce", self._all_reduce, array)

    def enqueue(self, what: str, function: Callable[..., Any], *arguments: object) -> Pending[Any]:
        """Run a function in order with the exchanges."""
        return self._submit(what, function, *arguments)

    def commit(self, loss: float, digest: bytes) -> None:  # noqa: ARG002 - all ranks have them in the summary
        """Return: all ranks have the summary of the step, so all of them know that it counts."""
        self._check()

    def halt(self, error: Halted) -> Halted:
        """End the exchange on this rank. Tell the other ranks, unless they have found the same error."""
        if isinstance(error, RemoteError):
            self._roll_call.tell(error)
        self._failure = self._failure or error
        return error

    # What an engine calls before the first step

    def all_gather(self, array: Array) -> Array:
        """Return the arrays of all ranks, which have the same shape, stacked by rank."""
        return self._run("an all_gather", self._all_gather, array)

    def all_gather_unequal(self, array: Array) -> list[Array]:
        """Return a list of the arrays of all ranks, which may differ in length."""
        sizes = self.all_gather(np.array([len(array)])).ravel()
        padded = np.zeros(max(sizes), array.dtype)
        padded[: len(array)] = array
        return [each[:size] for each, size in zip(self.all_gather(padded), sizes, strict=True)]

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Make every rank's array equal to the root's."""
        return self._run("a broadcast", self._broadcast, array, root)

    # The end

    def close(self) -> None:
        """End the exchanging thread. The group stays as it is. Closing twice is harmless."""
        self._executor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_leaving = error is None or (isinstance(error, SystemExit) and not error.code)
        if not is_leaving and error is not None and self._failure is None:
            words = f"rank {self.rank} failed: {traceback.format_exception_only(error)[-1].strip()}"
            self.halt(RemoteError(words, rank=self.rank))
        self.close()

    # One call after another

    def _submit(self, what: str, function: Callable[..., Any], *arguments: object) -> Pending[Any]:
        self._check()
        return self._executor.submit(what, self._perform, function, arguments)

    def _run(self, what: str, function: Callable[..., Array], *arguments: object) -> Array:
        self._check()
        return self._executor.run(what, self._perform, function, arguments)

    def _perform(
        self, function: Callable[..., Any], arguments: tuple[object, ...]
    ) -> Any:  # Any: each returns its own type
        self._check()
        with self._on_stream():
            return function(*arguments)

    def _check(self) -> None:
        if self._failure is not None:
            raise copy.copy(self._failure)

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def _fold_on_host(
        self, pieces: torch.Tensor, out: torch.Tensor, shares: LaneShares, blocks: Sequence[slice], finish: Finish
    ) -> Array:
        found = out if self._device.type == "cpu" else out.to(self._device)
        self._fold(pieces.to(self._device), found, shares, blocks, finish)
        if found is not out:
            out.copy_(found)
        array: Array = out.numpy()
        return array

    def _fold(
        self, pieces: torch.Tensor, out: torch.Tensor, lanes: int | LaneShares, blocks: Sequence[slice], finish: Finish
    ) -> None:
        """Add up this rank's part of a bucket, get the others, and measure this rank's blocks of the whole."""
        shares = LaneShares.even(lanes, self.size) if isinstance(lanes, int) else lanes
        what = "the exchange of a bucket"
        width = -(-len(out) // self.size)  # of a part; the last one may be shorter, and is filled up with anything
        is_even = len(out) == self.size * width
        sent = pieces if is_even and len(pieces) == 1 else self._pack(pieces, width)
        covered = [(each, rank) for rank in range(self.size) for each in shares.pieces(rank)]
        received = self._room("received", out.device, len(covered), width)
        counts = [len(shares.pieces(rank)) * width for rank in range(self.size)]
        self._wait(
            what,
            out.device,
            lambda: dist.all_to_all_single(
                received.view(-1),
                sent.reshape(-1),
                output_split_sizes=counts,
                input_split_sizes=[len(pieces) * width] * self.size,
                group=self._group,
                async_op=True,
            ),
        )
        own = add_up([each for each, _ in covered], received, shares.count, finish.divisor)
        gathered = out if is_even else self._room("gathered", out.device, self.size * width)
        self._wait(what, out.device, lambda: _gather_single(gathered, own, group=self._group, async_op=True))
        if not is_even:
            out.copy_(gathered[: len(out)])
        self._settle(what)
        measured = self.blocks_added_here(len(blocks))
        if finish.squares is not None and measured:
            first = blocks[measured[0]].start
            mean = out[first : blocks[measured[-1]].stop].cpu().numpy()
            for number in measured:
                finish.squares[number] = square_norm(mean[blocks[number].start - first : blocks[number].stop - first])

    def _pack(self, pieces: torch.Tensor, width: int) -> torch.Tensor:
        """Return a copy of the pieces in which the parts for one rank lie one behind the other."""
        sent = self._room("sent", pieces.device, self.size, len(pieces), width)
        for rank in range(self.size):
            part = pieces[:, rank * width : (rank + 1) * width]
            sent[rank, :, : part.shape[1]] = part
        return sent

    def _all_reduce(self, array: Array) -> Array:
        tensor = torch.from_numpy(array).to(self._device)
        self._wait("an all_reduce", self._device, lambda: dist.all_reduce(tensor, group=self._group, async_op=True))
        return self._return(tensor, array)

    def _all_gather(self, array: Array) -> Array:
        tensor = torch.from_numpy(array.reshape(-1).copy()).to(self._device)
        gathered = torch.empty(self.size * len(tensor), dtype=tensor.dtype, device=self._device)
        self._wait(
            "an all_gather",
            self._device,
            lambda: _gather_single(gathered, tensor, group=self._group, async_op=True),
        )
        return self._return(gathered, np.empty(len(gathered), array.dtype)).reshape(self.size, *array.shape)

    def _broadcast(self, array: Array, root: int) -> Array:
        tensor = torch.from_numpy(array).to(self._device)
        self._wait(
            "a broadcast",
            self._device,
            lambda: dist.broadcast(tensor, group=self._group, group_src=root, async_op=True),
        )
        return self._return(tensor, array)

    def _return(self, tensor: torch.Tensor, array: Array) -> Array:
        """Copy a result to the host, where it may lie already."""
        self._settle("a small exchange")
        torch.from_numpy(array).copy_(tensor)
        return array

    def _room(self, name: str, device: torch.device, *shape: int) -> torch.Tensor:
        """Return memory of f32 whose content is of no use to anybody any more."""
        length = int(np.prod(shape))
        found = self._scratch.get((name, device))
        if found is None or len(found) < length:
            found = self._scratch[name, device] = torch.empty(length, device=device)
        return found[:length].view(shape)

    def _wait(self, what: str, device: torch.device, start: Callable[[], "dist.Work"]) -> None:
        """Start a collective, and wait until it is done; on a GPU, let the stream wait for it."""
        deadline = Deadline.after(self._timeout_s)
        try:
            work = start()
            if device.type == "cpu":
                done = threading.Event()
                work.get_future().add_done_callback(lambda _: done.set())
                while not done.wait(_LOOK_S):
                    self._look(what, deadline)
            work.wait()
        except RuntimeError as error:  # as torch says everything
            self._failure = self._roll_call.find_lost(what, str(error))
            raise copy.copy(self._failure) from None

    def _settle(self, what: str) -> None:
        """Wait until a GPU has done everything so far."""
        if self.stream is None:
            return
        deadline, looked = Deadline.after(self._timeout_s), time.monotonic()
        is_done = torch.cuda.Event()
        is_done.record(self.stream)
        while not is_done.query():
            time.sleep(_POLL_S)
            if time.monotonic() - looked > _LOOK_S:
                looked = time.monotonic()
                self._look(what, deadline)

    def _look(self, what: str, deadline: Deadline) -> None:
        """Raise if another rank has failed, or if it is too late."""
        failure = self._roll_call.look(what)
        if failure is None and deadline.has_passed:
            failure = self._roll_call.find_lost(what, f"it took longer than {self._timeout_s:g} s", is_late=True)
        if failure is not None:
            self._failure = failure
            raise copy.copy(failure)


def add_up(covered: Sequence[range], pieces: torch.Tensor, lanes: int, divisor: float | None) -> torch.Tensor:
    """Return the mean of pieces, added up in the order of the tree over lanes. Row i is the sum of ``covered[i]``.

    The mean takes the place of the first row, and the others are changed as well. On a CPU this goes by chunks, which
    stay in cache. A division by a number would be a multiplication by its inverse on a GPU; by a tensor it is exact.
    """
    order = sorted(range(len(covered)), key=lambda row: covered[row].start)
    whole = None if divisor is None else torch.tensor(divisor, dtype=pieces.dtype, device=pieces.device)
    length = pieces.shape[1]
    for chunk in slices(slice(0, length), CHUNK if pieces.device.type == "cpu" else max(1, length)):
        carry: Carry[torch.Tensor] = Carry(lanes, lambda left, right: left.add_(right))
        for row in order:
            carry.add(covered[row], pieces[row, chunk])
        ((_, total),) = carry.pieces()
        if whole is not None:
            total.div_(whole)
    return pieces[order[0]]


def _store_of(group: "dist.ProcessGroup") -> "dist.Store | None":
    try:
        return group.get_group_store()
    except RuntimeError:  # a group of MPI has none
        return None

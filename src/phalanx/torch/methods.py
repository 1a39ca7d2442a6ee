"""The methods that ``torch.distributed`` calls on a group, whatever the version of torch."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from phalanx.errors import ConfigError
from phalanx.group import Group
from phalanx.torch.calls import Options, TensorCalls
from phalanx.torch.messages import TensorMessages
from phalanx.torch.work import TensorWork

NAME = "phalanx"


class GroupMethods:
    """Collectives and messages under the names of torch 2.14 and, where they differ, of older versions.

    C++ code finds them by the names that torch's trampolines have, and Python code by those that ``torch.distributed``
    calls.
    """

    _calls: TensorCalls | None = None
    _messages: TensorMessages | None = None

    def _use(self, group: Group, forget: Callable[[Group], None]) -> None:
        """Let this group carry out all calls from now on."""
        self._calls = TensorCalls(group)
        self._messages = TensorMessages(group)
        self._forget = forget

    @property
    def _collectives(self) -> TensorCalls:
        if self._calls is None:
            raise ConfigError("this group has no members yet: call reconfigure first")
        return self._calls

    @property
    def _mail(self) -> TensorMessages:
        if self._messages is None:
            raise ConfigError("this group has no members yet: call reconfigure first")
        return self._messages

    @property
    def phalanx(self) -> Group:
        """The group that carries out the calls."""
        return self._collectives.group

    def _get_sequence_number_for_group(self) -> int:
        return self._collectives.sequence

    def _set_sequence_number_for_group(self) -> None:
        """Numbers begin at 0 on all ranks."""

    # Collectives

    def allreduce(self, tensors: Sequence[Tensor] | Tensor, opts: Options = None) -> TensorWork:
        """Reduce tensors over all ranks, in place."""
        return self._collectives.all_reduce(_listed(tensors), _reducing(opts, distributed.AllreduceOptions))

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Sequence[Tensor] | Tensor, opts: Options = None) -> TensorWork:
        """Make tensors equal to the root's."""
        return self._collectives.broadcast(_listed(tensors), _rooted(opts, distributed.BroadcastOptions))

    def reduce(self, tensors: Sequence[Tensor] | Tensor, opts: Options = None) -> TensorWork:
        """Reduce tensors over all ranks, on the root."""
        return self._collectives.reduce(_listed(tensors), _rooted(opts, distributed.ReduceOptions))

    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor] | Tensor, opts: Options = None
    ) -> TensorWork:
        """Collect the inputs of all ranks."""
        if isinstance(inputs, torch.Tensor):
            outputs = [outputs]
        return self._collectives.all_gather(outputs, _listed(inputs), opts or distributed.AllgatherOptions())

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Options = None
    ) -> TensorWork:
        """Collect the inputs of all ranks; ``outputs`` has a list for each rank."""
        by_input = [list(each) for each in zip(*outputs, strict=True)]
        return self._collectives.all_gather(by_input, inputs, opts or distributed.AllgatherOptions())

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Options = None) -> TensorWork:
        """Collect the inputs of all ranks in one tensor."""
        return self._collectives.all_gather_single([output], [given], opts or distributed.AllgatherOptions())

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Options = None
    ) -> TensorWork:
        """Collect the inputs of all ranks in one tensor for each input."""
        return self._collectives.all_gather_single(outputs, inputs, opts or distributed.AllgatherOptions())

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(
        self, outputs: Sequence[Tensor] | Tensor, inputs: Sequence[Any], opts: Options = None
    ) -> TensorWork:
        """Reduce lists over all ranks, and keep this rank's elements."""
        if isinstance(outputs, torch.Tensor):
            inputs = [inputs]
        return self._collectives.reduce_scatter(
            _listed(outputs), inputs, _reducing(opts, distributed.ReduceScatterOptions)
        )

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Options = None) -> TensorWork:
        """Reduce a tensor over all ranks, and keep this rank's part."""
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Options = None
    ) -> TensorWork:
        """Reduce tensors over all ranks, and keep this rank's parts."""
        return self._collectives.reduce_scatter_single(
            outputs, inputs, _reducing(opts, distributed.ReduceScatterOptions)
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Options = None) -> TensorWork:
        """Collect the inputs of all ranks on the root."""
        return self._collectives.gather(outputs, inputs, _rooted(opts, distributed.GatherOptions))

    def scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Options = None
    ) -> TensorWork:
        """Give each rank its element of the root's list."""
        return self._collectives.scatter(outputs, inputs, _rooted(opts, distributed.ScatterOptions))

    def all_to_all_single(
        self,
        output: Tensor,
        given: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Options = None,
    ) -> TensorWork:
        """Send rows of the input to each rank."""
        chosen = opts or distributed.AllToAllOptions()
        return self._collectives.all_to_all_single(output, given, output_splits, input_splits, chosen)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Options = None) -> TensorWork:
        """Send a tensor to each rank."""
        return self._collectives.all_to_all(outputs, inputs, opts or distributed.AllToAllOptions())

    def barrier(self, opts: Options = None) -> TensorWork:
        """Wait for all ranks."""
        return self._collectives.barrier(opts or distributed.BarrierOptions())

    def monitored_barrier(self, opts: Options = None, wait_all_ranks: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Wait for all ranks; the error names those that did not come. Older torch allows only Gloo to do this."""
        del wait_all_ranks  # the error names all of them anyway
        self._collectives.wait_for_all(opts or distributed.BarrierOptions())

    # Messages

    def send(self, tensors: Sequence[Tensor], to: int, tag: int) -> TensorWork:
        """Send a tensor to one rank."""
        return self._mail.send(tensors, to, tag)

    def recv(self, tensors: Sequence[Tensor], source: int, tag: int) -> TensorWork:
        """Receive a tensor from one rank."""
        return self._mail.receive(tensors, source, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int) -> TensorWork:
        """Receive a tensor from whichever rank sends one."""
        return self._mail.receive(tensors, None, tag)

    # Ending

    def set_timeout(self, timeout: timedelta) -> None:
        """Let later calls that give no timeout take so long."""
        self._collectives.group.timeout_s = timeout.total_seconds()

    def shutdown(self) -> None:
        """Finish all calls, and leave the group. Shutting down twice is harmless."""
        calls, self._calls, self._messages = self._calls, None, None
        if calls is not None:
            self._forget(calls.group)
            calls.close()

    def abort(self) -> None:
        """End all calls with an error, and leave the group."""
        if self._calls is not None:
            self._calls.group.abort()
            self.shutdown()


def _listed(tensors: Sequence[Tensor] | Tensor) -> Sequence[Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def _reducing(opts: Options, kind: Callable[[], Options]) -> Options:
    """Return options; callers may leave them out, or pass only how to reduce."""
    if opts is None:
        return kind()
    if isinstance(opts, distributed.ReduceOp | distributed.ReduceOp.RedOpType):
        made = kind()
        made.reduceOp = opts
        return made
    return opts


def _rooted(opts: Options, kind: Callable[[], Options]) -> Options:
    """Return options; callers may leave them out, or pass only the root."""
    if opts is None or isinstance(opts, int):
        made = kind()
        made.rootRank = opts or 0
        return made
    return opts

"""Point-to-point messages of one ``torch.distributed`` group: send and receive, with tags and from any source."""

from collections.abc import Sequence

import torch
from torch import Tensor

from phalanx.errors import ConfigError
from phalanx.group import Group
from phalanx.torch.tensors import as_array
from phalanx.torch.work import TensorWork, ThreadForEach
from phalanx.transport import Pending


class TensorMessages:
    """Sends and receives tensors. Messages do not wait for collectives, nor collectives for messages."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def send(self, tensors: Sequence[Tensor], to: int, tag: int) -> TensorWork:
        """Begin to send a tensor to one rank."""
        tensor = _only(tensors, "send")
        dense = tensor.detach().cpu().contiguous()
        return self._work(self._group.send_tagged_nowait(as_array(dense), to, tag), tensors)

    def receive(self, tensors: Sequence[Tensor], source: int | None, tag: int) -> TensorWork:
        """Begin to receive a tensor from one rank, or from any."""
        tensor = _only(tensors, "recv")
        is_direct = tensor.device.type == "cpu" and tensor.is_contiguous()
        dense = tensor if is_direct else torch.empty(tensor.shape, dtype=tensor.dtype)
        pending = self._group.recv_tagged_nowait(as_array(dense), source, tag)
        return self._work(pending if is_direct else _CopyBack(pending, dense, tensor), tensors)

    def _work(self, pending: "Pending[None] | Pending[int] | _CopyBack", tensors: Sequence[Tensor]) -> TensorWork:
        return TensorWork(pending, tensors, ThreadForEach(f"phalanx-message-{self._group.rank}"))


class _CopyBack(Pending[int]):
    """A receive into a copy, which whoever waits first copies to where it belongs."""

    def __init__(self, pending: Pending[int], dense: Tensor, tensor: Tensor) -> None:
        super().__init__(pending.what)
        self._pending = pending
        self._dense: Tensor | None = dense
        self._tensor = tensor

    @property
    def is_done(self) -> bool:
        """Whether ``wait`` would return or raise at once."""
        return self._pending.is_done

    @property
    def error(self) -> BaseException | None:
        """What went wrong, or None."""
        return self._pending.error

    def wait(self, timeout_s: float | None = None) -> int:
        """Return who has sent the tensor, when it is where it belongs."""
        source = self._pending.wait(timeout_s)
        if self._dense is not None:
            self._tensor.detach().copy_(self._dense)
            self._dense = None
        return source

    def wait_until_done(self) -> None:
        """Return when ``wait`` would return or raise at once."""
        self._pending.wait_until_done()


def _only(tensors: Sequence[Tensor], what: str) -> Tensor:
    if len(tensors) != 1:
        raise ConfigError(f"{what}: one tensor at a time, not {len(tensors)}")
    return tensors[0]

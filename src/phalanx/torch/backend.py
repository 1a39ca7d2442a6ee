"""The shell for torch 2.14 and newer: a ``Backend`` subclass, which torch puts into a group of its own."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as c10d

from phalanx.group import Group
from phalanx.torch.methods import NAME, GroupMethods
from phalanx.torch.reconfigure import Handle
from phalanx.torch.work import CompletedCall, TensorWork, ThreadForEach


class PhalanxBackend(GroupMethods, c10d.Backend):
    """The backend of one ``torch.distributed`` group, which may have another backend for another device.

    A backend without a group gets its members by ``reconfigure``.
    """

    def __init__(
        self, group: Group | None, rank: int, size: int, timeout: timedelta, forget: Callable[[Group], None]
    ) -> None:
        super().__init__(rank, size)
        self._timeout = timeout
        self._forget = forget
        self._handle: Handle | None = None
        self._used: set[str] = set()
        if group is not None:
            self._use(group, forget)

    def getBackendName(self) -> str:  # noqa: N802 - the name in C++
        """The name by which torch knows this backend."""
        return NAME

    name = getBackendName

    @property
    def options(self) -> Any:
        """What torch shows of this backend."""
        return c10d.Backend.Options(NAME, timeout=self._timeout)

    supports_splitting = property(lambda _: False)
    supports_coalescing = property(lambda _: False)
    supports_shrinking = property(lambda _: False)
    supports_window = property(lambda _: False)
    supports_reconfigure = property(lambda _: True)

    def get_reconfigure_handle(self) -> str:
        """Return words by which the other members of a later group find this process."""
        if self._handle is None:
            self._handle = Handle.reserve()
        return self._handle.encode()

    def reconfigure(self, opts: Any) -> TensorWork:
        """Leave the present group, and join that of the processes whose handles ``opts`` has: a list by rank, or a set.

        torch keeps the rank and size of ``init_process_group``; those of the new group are in ``phalanx``.
        """
        if opts.uuid in self._used:
            raise ValueError(f"the uuid {opts.uuid} was already used: a new membership needs a new one")
        self._used.add(opts.uuid)
        self.shutdown()
        self.get_reconfigure_handle()
        assert self._handle is not None, "it was just made"
        timeout = opts.timeout if opts.timeout and opts.timeout > timedelta(0) else self._timeout
        handles = sorted(opts.handles) if isinstance(opts.handles, set) else opts.handles
        group = self._handle.meet([Handle.decode(each) for each in handles], str(opts.uuid), timeout)
        self._use(group, self._forget)
        return TensorWork(CompletedCall(), (), ThreadForEach("phalanx-reconfigure"))

"""The shell for torch below 2.14: a ``ProcessGroup`` subclass, which becomes the group itself."""

from collections.abc import Callable

import torch
from torch import distributed

from phalanx.group import Group
from phalanx.torch.methods import NAME, GroupMethods


class PhalanxProcessGroup(GroupMethods, distributed.ProcessGroup):  # type: ignore[misc]  # torch is not type-checked
    """A ``torch.distributed`` group whose collectives a ``phalanx.Group`` carries out.

    torch makes no difference between devices in it: it cannot be mixed with other backends in one group.
    """

    def __init__(self, group: Group, forget: Callable[[Group], None]) -> None:
        super().__init__(group.rank, group.size)
        self._rank, self._size = group.rank, group.size
        self._use(group, forget)
        self._name = ""
        self._description = ""

    # Who this is

    def getRank(self) -> int:  # noqa: N802 - the name in C++
        """This rank's number."""
        return self._rank

    def getSize(self) -> int:  # noqa: N802
        """How many ranks there are."""
        return self._size

    rank, size = getRank, getSize

    def getBackendName(self) -> str:  # noqa: N802
        """The name by which torch knows this backend."""
        return NAME

    name = getBackendName
    _get_backend_name = getBackendName

    def getGroupName(self) -> str:  # noqa: N802
        """The name that torch has given this group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Keep the name that torch gives this group."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """The description that torch has given this group."""
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Keep the description that torch gives this group."""
        self._description = description

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def _get_backend(self, device: torch.device) -> "_Capabilities":
        del device
        return _CAPABILITIES


class _Capabilities:
    """What a device's backend says of itself: none of torch's optional features."""

    supports_splitting = False
    supports_coalescing = False
    supports_shrinking = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return that this backend has no memory of its own on a device."""
        del device
        return False

    def name(self) -> str:
        """Return the name by which torch knows this backend."""
        return NAME


_CAPABILITIES = _Capabilities()

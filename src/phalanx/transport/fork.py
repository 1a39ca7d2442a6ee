"""Closing inherited descriptors in forked children.

A forked child, such as a worker of a ``DataLoader``, gets a copy of every descriptor. As long as the copy of a socket
is open, the kernel does not tell the peer that the parent has died.
"""

import contextlib
import os
from typing import Protocol, TypeVar
from weakref import WeakSet


class Closable(Protocol):
    """An owner of a descriptor. Its ``close`` must only close: what is shut down is shut down for the parent too."""

    def close(self) -> None:
        """Close the descriptor of this process."""


ClosableT = TypeVar("ClosableT", bound=Closable)

_open: WeakSet[Closable] = WeakSet()


def close_in_children(owner: ClosableT) -> ClosableT:
    """Have every child that this process forks close its copy, and return ``owner``, which is not kept alive."""
    _open.add(owner)
    return owner


def _close_all() -> None:
    for owner in list(_open):
        with contextlib.suppress(OSError):
            owner.close()


os.register_at_fork(after_in_child=_close_all)

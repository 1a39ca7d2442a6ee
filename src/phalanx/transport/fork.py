"""What forked children, such as the workers of a ``DataLoader``, must not inherit: descriptors, and locks of OpenSSL.

A forked child gets a copy of every descriptor. As long as the copy of a socket is open, the kernel does not tell the
peer that the parent has died.

It also gets a copy of every lock, but not of the thread that holds it. OpenSSL takes locks of its own while Python lets
other threads run. A child forked at that moment would wait for ever in its own first call of OpenSSL.
"""

import contextlib
import os
import threading
from typing import Protocol, TypeVar
from weakref import WeakSet


class Closable(Protocol):
    """An owner of a descriptor. Its ``close`` must only close: what is shut down is shut down for the parent too."""

    def close(self) -> None:
        """Close the descriptor of this process."""


ClosableT = TypeVar("ClosableT", bound=Closable)

_open: WeakSet[Closable] = WeakSet()

no_fork = threading.RLock()
"""A fork waits for whoever holds this. Hold it while OpenSSL may look something up, and never while you wait."""


def close_in_children(owner: ClosableT) -> ClosableT:
    """Have every child that this process forks close its copy, and return ``owner``, which is not kept alive."""
    _open.add(owner)
    return owner


def _close_all() -> None:
    for owner in list(_open):
        with contextlib.suppress(OSError):
            owner.close()


os.register_at_fork(after_in_child=_close_all)
os.register_at_fork(before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=no_fork.release)

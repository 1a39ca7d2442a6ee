"""Memory in pages of its own."""

import mmap

import numpy as np

from phalanx.buffers import Array


def allocate_pages(size_bytes: int) -> Array:
    """Return zeroed bytes that share no page with other memory; pages that are never written take up no memory.

    Numpy takes small arrays out of pages that others use too: when two such arrays were pinned, a GPU sometimes read
    what was there after one of them had been freed (docs/log.md). For large arrays it asks for huge pages, of which one
    written byte takes up all.
    """
    return np.frombuffer(mmap.mmap(-1, max(1, size_bytes)), np.uint8, size_bytes)

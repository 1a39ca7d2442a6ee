"""Numbers that the processes of a test share."""

import mmap
import time


class Counters:
    """How far every rank has come, seen by all processes."""

    def __init__(self, size):
        self._memory = mmap.mmap(-1, 8 * size)
        self.values = memoryview(self._memory).cast("Q")

    def wait_until_all_reach(self, count):
        deadline = time.monotonic() + 30
        while min(self.values) < count:
            assert time.monotonic() < deadline, f"ranks only came to {list(self.values)}"

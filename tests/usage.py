"""What a process uses, for tests that make something, drop it, and look whether anything is left."""

import gc
import resource
import threading
from pathlib import Path

from phalanx.transport import Deadline


class Usage:
    """The descriptors, threads and memory of this process, after dropped groups have left in threads of their own."""

    def __init__(self):
        gc.collect()
        for thread in threading.enumerate():
            if thread.name == "phalanx-leave":
                thread.join(30)
        self.descriptors = len(list(Path("/proc/self/fd").iterdir()))
        self.threads = threading.active_count()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.resident_bytes = pages * resource.getpagesize()

    def wait_until_back(self):
        """Return when this process uses no more than it did here; a thread may hold the last reference for a moment."""
        deadline, now = Deadline.after(30), Usage()
        while (now.descriptors > self.descriptors or now.threads > self.threads) and not deadline.has_passed:
            now = Usage()
        assert now.descriptors <= self.descriptors
        assert now.threads <= self.threads
        assert now.resident_bytes <= self.resident_bytes + (32 << 20)

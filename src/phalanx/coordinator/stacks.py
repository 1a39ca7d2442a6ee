"""The Python stacks of a worker on request: no debugger, and no right to trace processes, is needed."""

import sys
import threading
import traceback

from phalanx.wire import LINE_BREAK

_MOST = 60_000  # letters; a message holds 65,536


def describe_stacks() -> str:
    """Return what every thread of this process does, the main thread first, with the innermost call of each last.

    If that is too long, the outermost calls of each thread are left out.
    """
    frames = sys._current_frames()  # noqa: SLF001 - the only way to see other threads
    threads = sorted(threading.enumerate(), key=lambda each: (each is not threading.main_thread(), each.name))
    known = [each for each in threads if each.ident in frames]
    room = _MOST // max(1, len(known))
    told = []
    for thread in known:
        lines = "".join(traceback.format_stack(frames[thread.ident or 0]))
        told.append(f"thread {thread.name}:\n{lines[-room + 100 :].rstrip()}")
    return "\n".join(told).replace("\n", LINE_BREAK)[:_MOST]  # as a message holds several lines

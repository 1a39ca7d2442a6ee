"""Starting workers (``local``), and finding the group or run that a process was started in (``connect``)."""

from phalanx.launch.connect import connect, join_run
from phalanx.launch.spawning import spawn

__all__ = ["connect", "join_run", "spawn"]

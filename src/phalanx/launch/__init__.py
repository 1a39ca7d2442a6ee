"""Starting workers (``local``), and finding the group that a process was started in (``connect``)."""

from phalanx.launch.connect import connect

__all__ = ["connect"]

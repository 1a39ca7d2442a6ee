"""Starting workers (``local``), and finding one's group when one has been started."""

from phalanx.launch.connect import connect

__all__ = ["connect"]

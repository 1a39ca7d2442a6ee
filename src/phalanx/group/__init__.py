"""The API people call: a group of ranks and its collectives."""

from phalanx.group.connect import Join, Over, alone, connect
from phalanx.group.group import Group, Statistics

__all__ = ["Group", "Join", "Over", "Statistics", "alone", "connect"]

"""The API people call: a group of ranks and its collectives."""

from phalanx.group.connect import Join, Over, alone, connect, enlist
from phalanx.group.group import Group, Statistics
from phalanx.group.transaction import RunMember

__all__ = ["Group", "Join", "Over", "RunMember", "Statistics", "alone", "connect", "enlist"]

"""The API people call: a group of ranks and its collectives."""

from phalanx.group.connect import Join, Over, alone, connect, enlist
from phalanx.group.group import Group, Statistics
from phalanx.group.transaction import Member

__all__ = ["Group", "Join", "Member", "Over", "Statistics", "alone", "connect", "enlist"]

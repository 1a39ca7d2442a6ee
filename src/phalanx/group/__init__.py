"""The API people call: a group of ranks and its collectives."""

from phalanx.group.connect import Join, Over, alone, check_lanes, connect, enlist, published
from phalanx.group.elastic import ENDS_EPOCH, ElasticRun
from phalanx.group.group import Group, Statistics
from phalanx.group.transaction import RunMember

__all__ = [
    "ENDS_EPOCH",
    "ElasticRun",
    "Group",
    "Join",
    "Over",
    "RunMember",
    "Statistics",
    "alone",
    "check_lanes",
    "connect",
    "enlist",
    "published",
]

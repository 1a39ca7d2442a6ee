"""Which part goes to whom, and doing it: plans over links, and folding in shared memory."""

from phalanx.collectives import direct, pair, ring, star, tree
from phalanx.collectives.blocks import cut_shards
from phalanx.collectives.call import Call
from phalanx.collectives.choose import Algorithm, Choice, Costs, Topology, choose
from phalanx.collectives.lanes import Finish, LaneFold, count_pieces, list_added
from phalanx.collectives.plan import Plan, Receive, Round, Send, Then
from phalanx.collectives.run import LinkRunner, tell_all
from phalanx.collectives.shared import ArenaRunner
from phalanx.collectives.team import Team

__all__ = [
    "Algorithm",
    "ArenaRunner",
    "Call",
    "Choice",
    "Costs",
    "Finish",
    "LaneFold",
    "LinkRunner",
    "Plan",
    "Receive",
    "Round",
    "Send",
    "Team",
    "Then",
    "Topology",
    "choose",
    "count_pieces",
    "cut_shards",
    "direct",
    "list_added",
    "pair",
    "ring",
    "star",
    "tell_all",
    "tree",
]

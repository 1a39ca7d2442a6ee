"""Collectives: plans over links, folding in shared memory, and the choice between them."""

from phalanx.collectives import direct, pair, ring, star, tree
from phalanx.collectives.call import Call
from phalanx.collectives.choose import Algorithm, Choice, Costs, choose
from phalanx.collectives.lanes import Finish, LaneFold, blocks_added, blocks_added_first, count_pieces
from phalanx.collectives.plan import Plan, Receive, Round, Send, Then
from phalanx.collectives.run import LinkRunner, tell_all
from phalanx.collectives.shared import ArenaRunner
from phalanx.collectives.tagged import TaggedMessages
from phalanx.collectives.team import Team
from phalanx.collectives.topology import Topology

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
    "TaggedMessages",
    "Team",
    "Then",
    "Topology",
    "blocks_added",
    "blocks_added_first",
    "choose",
    "count_pieces",
    "direct",
    "pair",
    "ring",
    "star",
    "tell_all",
    "tree",
]

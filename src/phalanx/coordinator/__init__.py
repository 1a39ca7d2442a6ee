"""Who is in the group, and whether a step counts; and the gradient server."""

from phalanx.coordinator.accumulator import Weighting
from phalanx.coordinator.blame import odd_one_out
from phalanx.coordinator.client import CoordinatorClient
from phalanx.coordinator.gradient_server import GradientServer
from phalanx.coordinator.journal import Journal
from phalanx.coordinator.membership import Membership
from phalanx.coordinator.onlooker import look
from phalanx.coordinator.participant import Participant
from phalanx.coordinator.server import Coordinator
from phalanx.coordinator.star_collect import Reduced
from phalanx.coordinator.terms import Terms, parse_workers
from phalanx.coordinator.worker_client import WorkerClient
from phalanx.wire import gradient

Block, Component, Whole = gradient.Block, gradient.Component, gradient.Whole

__all__ = [
    "Block",
    "Component",
    "Coordinator",
    "CoordinatorClient",
    "GradientServer",
    "Journal",
    "Membership",
    "Participant",
    "Reduced",
    "Terms",
    "Weighting",
    "Whole",
    "WorkerClient",
    "look",
    "odd_one_out",
    "parse_workers",
]

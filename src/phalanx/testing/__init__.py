"""The test kit: groups on one machine, faulty links, plans and clusters in one thread, a clock that moves when told."""

from phalanx.testing.clock import ManualClock
from phalanx.testing.cluster import Violation, simulate_cluster, walk_all
from phalanx.testing.conformance import check_link
from phalanx.testing.faults import FaultyLink
from phalanx.testing.outcome import Outcome
from phalanx.testing.simulate import PlanError, simulate
from phalanx.testing.world import Run, World

__all__ = [
    "FaultyLink",
    "ManualClock",
    "Outcome",
    "PlanError",
    "Run",
    "Violation",
    "World",
    "check_link",
    "simulate",
    "simulate_cluster",
    "walk_all",
]

"""The test kit: groups on one machine, faulty links, plans in one thread, a clock that moves when told."""

from phalanx.testing.clock import ManualClock
from phalanx.testing.conformance import check_link
from phalanx.testing.faults import FaultyLink
from phalanx.testing.outcome import Outcome
from phalanx.testing.simulate import PlanError, simulate
from phalanx.testing.world import Run, World

__all__ = ["FaultyLink", "ManualClock", "Outcome", "PlanError", "Run", "World", "check_link", "simulate"]

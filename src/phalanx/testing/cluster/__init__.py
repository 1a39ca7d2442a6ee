"""A cluster in one thread: the coordinator's and the workers' state machines, and everything that can go wrong."""

from phalanx.testing.cluster.laws import Violation
from phalanx.testing.cluster.simulate import ClusterReport, simulate_cluster
from phalanx.testing.cluster.walk import Walked, walk_all

__all__ = ["ClusterReport", "Violation", "Walked", "simulate_cluster", "walk_all"]

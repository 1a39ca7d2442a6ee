"""Who is in the group, and telling everybody when that changes."""

from phalanx.coordinator.client import CoordinatorClient
from phalanx.coordinator.membership import Decision, Drop, Membership, Say, blame
from phalanx.coordinator.server import Coordinator

__all__ = ["Coordinator", "CoordinatorClient", "Decision", "Drop", "Membership", "Say", "blame"]

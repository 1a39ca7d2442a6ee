"""Who is in the group, and whether a step counts."""

from phalanx.coordinator.client import CoordinatorClient
from phalanx.coordinator.event_log import EventLog, read_events
from phalanx.coordinator.journal import Journal
from phalanx.coordinator.membership import Membership
from phalanx.coordinator.onlooker import ask_about, look
from phalanx.coordinator.participant import Participant
from phalanx.coordinator.server import Coordinator
from phalanx.coordinator.terms import Terms, check_times, parse_workers

__all__ = [
    "Coordinator",
    "CoordinatorClient",
    "EventLog",
    "Journal",
    "Membership",
    "Participant",
    "Terms",
    "ask_about",
    "check_times",
    "look",
    "parse_workers",
    "read_events",
]

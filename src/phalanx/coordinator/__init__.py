"""Who is in the group, and whether a step counts."""

from phalanx.coordinator.client import CoordinatorClient
from phalanx.coordinator.event_log import EventLog, read_events
from phalanx.coordinator.hang import Awaited, find_awaited
from phalanx.coordinator.journal import Journal
from phalanx.coordinator.membership import Membership
from phalanx.coordinator.notes import ClockSample, NotesClient
from phalanx.coordinator.onlooker import ask_about, ask_stacks, look
from phalanx.coordinator.participant import Participant
from phalanx.coordinator.server import Coordinator
from phalanx.coordinator.terms import Terms, check_times, parse_workers

__all__ = [
    "Awaited",
    "ClockSample",
    "Coordinator",
    "CoordinatorClient",
    "EventLog",
    "Journal",
    "Membership",
    "NotesClient",
    "Participant",
    "Terms",
    "ask_about",
    "ask_stacks",
    "check_times",
    "find_awaited",
    "look",
    "parse_workers",
    "read_events",
]

"""Checks of a machine, of the way to a coordinator, and of the ways between machines, before training."""

from phalanx.doctor.attend import Appointment, attend
from phalanx.doctor.collect import collect
from phalanx.doctor.facts import MachineFacts
from phalanx.doctor.finding import CheckFinding, Level
from phalanx.doctor.judge_machine import judge_machine

__all__ = ["Appointment", "CheckFinding", "Level", "MachineFacts", "attend", "collect", "judge_machine"]

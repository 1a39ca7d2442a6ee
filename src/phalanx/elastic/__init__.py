"""What the members of an elastic run decide at the start of an epoch, and what outlives it. No torch, no I/O."""

from phalanx.elastic.entry import (
    Compare,
    CopyWeights,
    EntryMove,
    Follow,
    Form,
    HandOver,
    Hold,
    Learn,
    Settle,
    StartAlike,
    cut_copy,
    find_lost_state,
    plan_entry,
)
from phalanx.elastic.fencing import may_write
from phalanx.elastic.holders import Handover, Holding, share_state
from phalanx.elastic.member_state import MemberState
from phalanx.elastic.progress import StepProgress
from phalanx.elastic.stance import Roles, Stance, check_sharing, choose_roles

__all__ = [
    "Compare",
    "CopyWeights",
    "EntryMove",
    "Follow",
    "Form",
    "HandOver",
    "Handover",
    "Hold",
    "Holding",
    "Learn",
    "MemberState",
    "Roles",
    "Settle",
    "Stance",
    "StartAlike",
    "StepProgress",
    "check_sharing",
    "choose_roles",
    "cut_copy",
    "find_lost_state",
    "may_write",
    "plan_entry",
    "share_state",
]

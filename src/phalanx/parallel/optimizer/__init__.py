"""What an optimizer updates and keeps: leaves, labelled state, and weights that other ranks read."""

from phalanx.checkpoint import Label, locate, parse_label
from phalanx.parallel.optimizer.leaf import Kept, Leaf, Leaves, check_taken
from phalanx.parallel.optimizer.settings import (
    GroupSettings,
    MakeOptimizer,
    Schedule,
    ScheduledRates,
    choose_optimizer,
)
from phalanx.parallel.optimizer.state import check_names, from_tensor, gather, scatter, to_tensor, wants_on_device
from phalanx.parallel.optimizer.weights import Arrival, Weights

__all__ = [
    "Arrival",
    "GroupSettings",
    "Kept",
    "Label",
    "Leaf",
    "Leaves",
    "MakeOptimizer",
    "Schedule",
    "ScheduledRates",
    "Weights",
    "check_names",
    "check_taken",
    "choose_optimizer",
    "from_tensor",
    "gather",
    "locate",
    "parse_label",
    "scatter",
    "to_tensor",
    "wants_on_device",
]

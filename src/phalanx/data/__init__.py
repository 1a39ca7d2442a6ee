"""Which samples a rank or a lane gets, for torch's DataLoader and for loops without torch."""

from phalanx.data.order import permute, samples_of
from phalanx.data.samplers import LaneSampler, RankSampler

__all__ = ["LaneSampler", "RankSampler", "permute", "samples_of"]

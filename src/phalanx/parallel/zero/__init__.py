"""ZeRO-1: an optimizer whose state is sharded over the ranks."""

from phalanx.parallel.zero.zero_optimizer import ZeroOptimizer

__all__ = ["ZeroOptimizer"]

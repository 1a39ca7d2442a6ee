"""Training across ranks; torch begins here."""

from phalanx.parallel.data_parallel import DataParallel
from phalanx.parallel.engine import Engine, Report, digest_weights
from phalanx.parallel.optimizer import Label, Leaf, parse_label
from phalanx.parallel.reduction import Exchange, StarExchange, TorchExchange, seed_of
from phalanx.parallel.zero import ZeroOptimizer

__all__ = [
    "DataParallel",
    "Engine",
    "Exchange",
    "Label",
    "Leaf",
    "Report",
    "StarExchange",
    "TorchExchange",
    "ZeroOptimizer",
    "digest_weights",
    "parse_label",
    "seed_of",
]

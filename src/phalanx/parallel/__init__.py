"""Training across ranks; torch begins here."""

from phalanx.parallel.blocks import Leaf
from phalanx.parallel.data_parallel import DataParallel
from phalanx.parallel.engine import Engine, Report
from phalanx.parallel.exchange import Exchange, GroupExchange
from phalanx.parallel.guard import digest_weights
from phalanx.parallel.lanes import seed_of
from phalanx.parallel.shards import Label, parse_label
from phalanx.parallel.star import StarExchange
from phalanx.parallel.zero import ZeroOptimizer

__all__ = [
    "DataParallel",
    "Engine",
    "Exchange",
    "GroupExchange",
    "Label",
    "Leaf",
    "Report",
    "StarExchange",
    "ZeroOptimizer",
    "digest_weights",
    "parse_label",
    "seed_of",
]

"""Training across ranks; torch begins here."""

from phalanx.parallel.blocks import Leaf
from phalanx.parallel.data_parallel import DataParallel
from phalanx.parallel.engine import Engine, Report
from phalanx.parallel.exchange import Exchange, GroupExchange
from phalanx.parallel.guard import digest_weights
from phalanx.parallel.lanes import seed_of
from phalanx.parallel.star import StarExchange

__all__ = [
    "DataParallel",
    "Engine",
    "Exchange",
    "GroupExchange",
    "Leaf",
    "Report",
    "StarExchange",
    "digest_weights",
    "seed_of",
]

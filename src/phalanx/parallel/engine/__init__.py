"""Training in exact lanes: the same bits for any number of workers."""

from phalanx.parallel.engine.digest import digest_weights
from phalanx.parallel.engine.engine import Engine
from phalanx.parallel.engine.report import Report

__all__ = ["Engine", "Report", "digest_weights"]

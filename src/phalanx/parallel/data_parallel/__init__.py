"""Data-parallel training in loops of your own."""

from phalanx.parallel.data_parallel.data_parallel import DataParallel
from phalanx.parallel.data_parallel.gradient_versions import count_scaler_changes

__all__ = ["DataParallel", "count_scaler_changes"]

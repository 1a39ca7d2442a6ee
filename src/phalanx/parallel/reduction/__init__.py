"""Averaging gradients over lanes and ranks: layout, memory, order and summary."""

from phalanx.parallel.reduction.agree import broadcast, compare, refuse_synced_norms
from phalanx.parallel.reduction.device_fold import NARROW
from phalanx.parallel.reduction.exchange import Exchange
from phalanx.parallel.reduction.fingerprint import fingerprints, hash_words
from phalanx.parallel.reduction.lanes import seed_of
from phalanx.parallel.reduction.layout import (
    BLOCK,
    BUCKET_BYTES,
    GPU_BLOCK,
    GPU_BUCKET_BYTES,
    Block,
    Layout,
    ParameterSpec,
    align,
    arrange,
    lay_out,
)
from phalanx.parallel.reduction.memory import as_tensor, dtype_of, is_staged, pin
from phalanx.parallel.reduction.non_finite import non_finite
from phalanx.parallel.reduction.ownership import Ownership, Unit, Way, layers_of, parse, share_blocks, share_units
from phalanx.parallel.reduction.reducer import KeptPiece, Reducer
from phalanx.parallel.reduction.star_exchange import StarExchange
from phalanx.parallel.reduction.summary import Summary, clip_factor
from phalanx.parallel.reduction.torch_exchange import TorchExchange

__all__ = [
    "BLOCK",
    "BUCKET_BYTES",
    "GPU_BLOCK",
    "GPU_BUCKET_BYTES",
    "NARROW",
    "Block",
    "Exchange",
    "KeptPiece",
    "Layout",
    "Ownership",
    "ParameterSpec",
    "Reducer",
    "StarExchange",
    "Summary",
    "TorchExchange",
    "Unit",
    "Way",
    "align",
    "arrange",
    "as_tensor",
    "broadcast",
    "clip_factor",
    "compare",
    "dtype_of",
    "fingerprints",
    "hash_words",
    "is_staged",
    "lay_out",
    "layers_of",
    "non_finite",
    "parse",
    "pin",
    "refuse_synced_norms",
    "seed_of",
    "share_blocks",
    "share_units",
]

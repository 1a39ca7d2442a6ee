"""The shapes of a transformer's parameters, known without building it."""

import math
from collections.abc import Mapping

from phalanx.train.config import ModelConfig

Shapes = Mapping[str, tuple[int, ...]]


def list_shapes(config: ModelConfig, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of ``Transformer(config, vocabulary)`` by name."""
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (vocabulary, config.width)}
    for layer in range(config.layers):
        shapes |= {f"blocks.{layer}.{name}.weight": shape for name, shape in _list_block(config).items()}
    shapes["final_norm.weight"] = (config.width,)
    if not config.tied:
        shapes["lm_head.weight"] = (vocabulary, config.width)
    return shapes


def count_parameters(config: ModelConfig, vocabulary: int) -> int:
    """Return how many elements the parameters of ``Transformer(config, vocabulary)`` have."""
    heads = 1 if config.tied else 2
    block = sum(map(math.prod, _list_block(config).values()))
    return heads * vocabulary * config.width + config.layers * block + config.width


def _list_block(config: ModelConfig) -> Shapes:
    width, hidden, kv_width = config.width, config.hidden, config.kv_heads * config.head_width
    return {
        "attention.query": (width, width),
        "attention.key": (kv_width, width),
        "attention.value": (kv_width, width),
        "attention.output": (width, width),
        "mlp.gate": (hidden, width),
        "mlp.up": (hidden, width),
        "mlp.down": (width, hidden),
        "input_norm": (width,),
        "post_norm": (width,),
    }

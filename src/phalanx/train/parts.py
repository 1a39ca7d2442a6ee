"""The parts in which a transformer's gradients are exchanged: its blocks, and what is before and after them."""

from typing import NamedTuple

from phalanx.gradient_server import Component, ModelBlock
from phalanx.train.model import Transformer
from phalanx.wire import gradient


class Part(NamedTuple):
    """A part of the model: what the gradient server calls it, and the names of its parameters."""

    what: gradient.What
    names: tuple[str, ...]


def list_parts(model: Transformer) -> list[Part]:
    """Return all parts from the last to the first, as their buckets leave. A tied LM head is not a part."""
    count = len(model.blocks)
    parts: list[tuple[gradient.What, str]] = [
        (Component.LM_HEAD, "lm_head."),
        (Component.FINAL_NORM, "final_norm."),
        *((ModelBlock(index, count), f"blocks.{index}.") for index in reversed(range(count))),
        (Component.EMBEDDING, "embedding."),
    ]
    return [Part(what, names) for what, prefix in parts if (names := _names(model, prefix))]


def _names(model: Transformer, prefix: str) -> tuple[str, ...]:
    return tuple(name for name, _ in model.named_parameters() if name.startswith(prefix))

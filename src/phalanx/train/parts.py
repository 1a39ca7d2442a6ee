"""The parts in which a transformer's gradients are exchanged, in the order in which backward makes them."""

from typing import NamedTuple

from phalanx.gradient_server import Component, ModelBlock
from phalanx.train.model import Transformer
from phalanx.wire import gradient


class Part(NamedTuple):
    """A part of the model: what the gradient server calls it, and the names of its parameters."""

    what: gradient.What
    names: tuple[str, ...]


def list_parts(model: Transformer) -> list[Part]:
    """Return all parts: the blocks from the last to the first, then the others. A tied LM head is not a part."""
    count = len(model.blocks)
    parts = [Part(ModelBlock(index, count), _names(model, f"blocks.{index}.")) for index in reversed(range(count))]
    others = [
        (Component.LM_HEAD, "lm_head."),
        (Component.FINAL_NORM, "final_norm."),
        (Component.EMBEDDING, "embedding."),
    ]
    parts += [Part(what, names) for what, prefix in others if (names := _names(model, prefix))]
    return parts


def _names(model: Transformer, prefix: str) -> tuple[str, ...]:
    return tuple(name for name, _ in model.named_parameters() if name.startswith(prefix))

"""The wire of entrenar, the system that Phalanx's gradient server descends from: its messages, and their bytes.

Gradients are larger than anyone wants to copy, so messages have only their number. A sender writes ``opening``, the
gradients' own memory (f32, little-endian) and ``closing``; a receiver moves them past the ``EntrenarReader``.
"""

from phalanx.wire.entrenar.codec import STRANGER_BYTES, closing, encode, is_opening, opening
from phalanx.wire.entrenar.message import (
    AveragedBlockGradient,
    AveragedGradient,
    AveragedNonBlockGradient,
    BlockGradientPayload,
    Gradient,
    GradientPayload,
    Heartbeat,
    JoinAccepted,
    JoinRequest,
    Message,
    NonBlockGradientPayload,
    ShardAssignment,
    Shutdown,
)
from phalanx.wire.entrenar.reader import EntrenarBegan, EntrenarEnded, EntrenarReader

__all__ = [
    "STRANGER_BYTES",
    "AveragedBlockGradient",
    "AveragedGradient",
    "AveragedNonBlockGradient",
    "BlockGradientPayload",
    "EntrenarBegan",
    "EntrenarEnded",
    "EntrenarReader",
    "Gradient",
    "GradientPayload",
    "Heartbeat",
    "JoinAccepted",
    "JoinRequest",
    "Message",
    "NonBlockGradientPayload",
    "ShardAssignment",
    "Shutdown",
    "closing",
    "encode",
    "is_opening",
    "opening",
]

"""The gradient server: one place that all gradients go to, and the mean comes back from."""

from phalanx.gradient_server.accumulator import Weighting
from phalanx.gradient_server.client import WorkerClient
from phalanx.gradient_server.collect import Reduced
from phalanx.gradient_server.server import GradientServer
from phalanx.wire import gradient

ModelBlock, Component, Whole = gradient.ModelBlock, gradient.Component, gradient.Whole

__all__ = [
    "Component",
    "GradientServer",
    "ModelBlock",
    "Reduced",
    "Weighting",
    "Whole",
    "WorkerClient",
]

"""The gradient server: workers send their gradients to one process, which answers with the mean."""

from phalanx.gradient_server.accumulator import Weighting
from phalanx.gradient_server.client import WorkerClient
from phalanx.gradient_server.collect import Reduced
from phalanx.gradient_server.server import GradientServer
from phalanx.wire import gradient

Component, ModelBlock, Whole = gradient.Component, gradient.ModelBlock, gradient.Whole

__all__ = [
    "Component",
    "GradientServer",
    "ModelBlock",
    "Reduced",
    "Weighting",
    "Whole",
    "WorkerClient",
]

"""Memory of a GPU that several ranks of a host can read, and the choice whether their gradients meet there."""

from phalanx.parallel.device.memory import Shared, share
from phalanx.parallel.device.route import Gpu, Meeting, Route, choose_route

__all__ = ["Gpu", "Meeting", "Route", "Shared", "choose_route", "share"]

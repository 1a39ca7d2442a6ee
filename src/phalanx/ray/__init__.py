"""Ray Train: the coordinator is an actor, and a run goes on while Ray replaces a worker that died."""

from phalanx.ray.backend import PhalanxConfig

__all__ = ["PhalanxConfig"]

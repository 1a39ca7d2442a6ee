"""A backend for ``torch.distributed``: importing this registers ``"phalanx"``."""

from phalanx.torch.registration import init, register

__all__ = ["init", "register"]

register()

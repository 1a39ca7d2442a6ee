"""The ``phalanx`` command."""

from phalanx.cli.app import main

__all__ = ["main"]

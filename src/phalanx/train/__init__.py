"""The transformer trainer."""

from importlib.util import find_spec


def require_torch() -> None:
    """Raise ModuleNotFoundError unless torch is installed. It is not imported, because that takes seconds."""
    if find_spec("torch") is None:
        raise ModuleNotFoundError("torch is not installed", name="torch")

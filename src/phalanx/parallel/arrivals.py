"""Weights that arrive while the next forward pass goes on: modules wait for their own before they compute."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from phalanx.transport import Pending


class Arrivals:
    """What is on its way to which parameters. Each module's forward waits for the parameters that the module has."""

    def __init__(self) -> None:
        self._pending: list[Pending[None]] = []
        self._of: dict[int, list[Pending[None]]] = {}

    def watch(self, model: torch.nn.Module) -> None:
        """Have the modules of a model wait from now on."""
        for module in model.modules():
            own = [id(parameter) for parameter in module.parameters(recurse=False)]
            if own:
                module.register_forward_pre_hook(self._make_hook(own))

    def put(self, pending: Pending[None], parameters: Iterable[torch.nn.Parameter]) -> None:
        """Something is on its way to these."""
        self._pending.append(pending)
        for parameter in parameters:
            self._of.setdefault(id(parameter), []).append(pending)

    def wait(self) -> None:
        """Return when everything is there."""
        for pending in self._pending:
            pending.wait()  # its call has a deadline
        self._pending.clear()
        self._of.clear()

    def _make_hook(self, own: Sequence[int]) -> Callable[[torch.nn.Module, Any], None]:
        def hook(_: torch.nn.Module, __: Any) -> None:  # Any: whatever the module takes
            for number in own:
                for pending in self._of.pop(number, ()):
                    pending.wait()

        return hook

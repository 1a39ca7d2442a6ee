"""Weights that arrive while the next forward pass goes on: modules wait for their own before they compute."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from phalanx.parallel.optimizer import Arrival


class Arrivals:
    """What is on its way to which parameters.

    Each module's forward waits for the parameters that the module has, and for those of modules inside it for which
    none of these has ever waited: some modules are never called, but only asked for their parameters.
    """

    def __init__(self) -> None:
        self._all: list[Arrival] = []
        self._of: dict[int, list[Arrival]] = {}
        self._depths: dict[int, int] = {}  # of each parameter, how far inside the innermost module is that waited

    def watch(self, model: torch.nn.Module) -> None:
        """Have the modules of a model wait from now on, also before weights are saved or loaded."""
        for name, module in model.named_modules():
            own = {id(parameter) for parameter in module.parameters(recurse=False)}
            inside = [id(parameter) for parameter in module.parameters()]
            depth = name.count(".") + 1 if name else 0
            module.register_forward_pre_hook(self._make_hook(own, inside, depth))
            module.register_state_dict_pre_hook(lambda *_: self.wait())
            module.register_load_state_dict_pre_hook(lambda *_: self.wait())

    def put(self, arrival: Arrival) -> None:
        """Something is on its way."""
        self._all.append(arrival)
        for parameter in arrival.parameters:
            self._of.setdefault(id(parameter), []).append(arrival)

    def wait(self) -> None:
        """Return when everything is there."""
        for arrival in self._all:
            arrival.wait()
        self._all.clear()
        self._of.clear()

    def _make_hook(
        self, own: Collection[int], inside: Iterable[int], depth: int
    ) -> Callable[[torch.nn.Module, Any], None]:
        def hook(_: torch.nn.Module, __: Any) -> None:  # Any: whatever the module takes
            for number in inside:
                if number in own or self._depths.get(number, depth) <= depth:
                    self._depths[number] = max(depth, self._depths.get(number, depth))
                    for arrival in self._of.pop(number, ()):
                        arrival.wait()

        return hook

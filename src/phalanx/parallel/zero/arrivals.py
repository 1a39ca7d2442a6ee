"""Weights that arrive during the next forward pass: each module waits for its own weights before it computes."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from phalanx.parallel.optimizer import Arrival


class Arrivals:
    """The weights that are on their way, by parameter.

    The forward pass of a module waits for the module's own parameters. It also waits for parameters of inner modules
    that have never waited themselves: some modules are never called, and others use their parameters.
    """

    def __init__(self) -> None:
        self._all: list[Arrival] = []
        self._of: dict[int, list[Arrival]] = {}
        self._depths: dict[int, int] = {}  # of each parameter, how far inside the innermost module is that waited

    def watch(self, model: torch.nn.Module) -> None:
        """Make the modules of a model wait from now on, also before their weights are saved or loaded."""
        for name, module in model.named_modules():
            own = {id(parameter) for parameter in module.parameters(recurse=False)}
            inside = [id(parameter) for parameter in module.parameters()]
            depth = name.count(".") + 1 if name else 0
            module.register_forward_pre_hook(self._make_hook(own, inside, depth))
            module.register_state_dict_pre_hook(lambda *_: self.wait())
            module.register_load_state_dict_pre_hook(lambda *_: self.wait())

    def put(self, arrival: Arrival) -> None:
        """Add weights that are on their way."""
        self._all.append(arrival)
        for parameter in arrival.parameters:
            self._of.setdefault(id(parameter), []).append(arrival)

    def wait(self) -> None:
        """Return when all weights have arrived."""
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

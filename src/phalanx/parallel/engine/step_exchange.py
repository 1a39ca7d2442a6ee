"""The exchange of steps between the members of an epoch: gradients, changes of buffers, and values."""

import torch

from phalanx.buffers import LaneShares
from phalanx.parallel.engine.buffers import LaneBuffers
from phalanx.parallel.engine.step_values import StepValues
from phalanx.parallel.optimizer import Leaves
from phalanx.parallel.reduction import Exchange, Layout, Ownership, Reducer


class StepExchange:
    """How the present members exchange steps.

    ``form`` makes ``reducer`` and ``values`` for new members, and lets the leaves use the mean gradients that will
    arrive there.
    """

    reducer: Reducer
    values: StepValues
    mean_changes: list[torch.Tensor]
    """The mean changes of floating-point buffers, once a step is exchanged."""

    def __init__(
        self,
        members: Exchange,
        layout: Layout,
        leaves: Leaves,
        buffers: LaneBuffers,
        *,
        lanes: int,
        device: torch.device,
        ownership: Ownership | None,
        is_elastic: bool,
        is_paranoid: bool,
    ) -> None:
        self.members = members
        self._layout = layout
        self.lanes = lanes
        self._leaves = leaves
        self._buffers = buffers
        self._device = device
        self._ownership = ownership
        self._is_elastic = is_elastic
        self._is_paranoid = is_paranoid

    def form(self, members: Exchange, shares: LaneShares) -> None:
        """Prepare the exchange between the members of an epoch, who have these shares of the lanes."""
        self.members = members
        self.reducer = Reducer(
            self._layout,
            members,
            self._device,
            lanes=shares,
            ownership=self._ownership,
            borrows=True,
            extra=StepValues.length(self.lanes, members.size, self._buffers.integer_count),
            paranoid=self._is_paranoid,
            keeps=self._is_elastic,
        )
        self.values = StepValues(self.reducer.summary.extra, self.lanes, members.size)
        means = self.reducer.means()
        parameters = len(means) - len(self._buffers.specs)
        self._leaves.bind(means[:parameters])
        self.mean_changes = means[parameters:]

"""The exchange of steps between the members of an epoch: gradients, changes of buffers, values, and new weights."""

from collections.abc import Sequence

import torch

from phalanx.buffers import LaneShares
from phalanx.elastic import Holding
from phalanx.group import Group
from phalanx.parallel.engine.buffers import LaneBuffers
from phalanx.parallel.engine.step_values import StepValues
from phalanx.parallel.optimizer import Leaves, Weights
from phalanx.parallel.reduction import Exchange, Layout, Ownership, Reducer
from phalanx.telemetry import Recorder


class StepExchange:
    """How the present members exchange steps.

    ``form`` makes ``reducer`` and ``values`` for new members, and lets the leaves use the mean gradients that will
    arrive there.
    """

    reducer: Reducer
    values: StepValues
    mean_changes: list[torch.Tensor]
    """The mean changes of floating-point buffers, once a step is exchanged."""
    holding: Holding
    """Which members hold the optimizer state of each leaf and update it."""

    def __init__(
        self,
        members: Exchange,
        layout: Layout,
        parameters: Sequence[torch.nn.Parameter],
        leaves: Leaves,
        buffers: LaneBuffers,
        *,
        lanes: int,
        is_elastic: bool,
        is_paranoid: bool,
        recorder: Recorder,
        through_host: bool = False,
    ) -> None:
        self.members = members
        self.recorder = recorder
        self._layout = layout
        self.lanes = lanes
        self._parameters = parameters
        self._leaves = leaves
        self._buffers = buffers
        self._is_elastic = is_elastic
        self._is_paranoid = is_paranoid
        self._through_host = through_host
        self._weights: Weights | None = None

    def form(self, members: Exchange, shares: LaneShares, holding: Holding) -> None:
        """Prepare the exchange between the members of an epoch, who have these shares of lanes and of the optimizer."""
        self.members = members
        self.holding = holding
        ownership = Ownership(self._leaves.blocks, holding.owners)
        self._weights = None
        if any(len(ranks) < members.size for ranks in holding.holders):
            assert isinstance(members, Group), "only ranks that reach each other share an optimizer"
            self._weights = Weights(
                self._parameters,
                ownership,
                members,
                is_elastic=self._is_elastic,
                through_host=self._through_host,
            )
            self._leaves.follow()
        self.reducer = Reducer(
            self._layout,
            members,
            self._parameters[0].device,
            lanes=shares,
            ownership=ownership,
            borrows=self._parameters[0].dtype is torch.float32,  # else gradients are widened, which takes a copy
            extra=StepValues.length(self.lanes, members.size, self._buffers.integer_count),
            paranoid=self._is_paranoid,
            keeps=self._is_elastic,
            recorder=self.recorder,
            through_host=self._through_host,
        )
        self.values = StepValues(self.reducer.summary.extra, self.lanes, members.size)
        means = self.reducer.means()
        self._leaves.bind(means[: len(self._parameters)])
        self.mean_changes = means[len(self._parameters) :]

    @property
    def is_spreading(self) -> bool:
        """Whether there are weights that only some members update, and the others get from them."""
        return self._weights is not None

    def spread_weights(self) -> None:
        """Get the weights that other members have updated from the owners of their blocks."""
        if self._weights:
            for arrival in self._weights.begin():
                arrival.wait()

"""What a rank holds of a training: weights, buffers, optimizer state, and the step at which they stand."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from phalanx.errors import ConfigError
from phalanx.parallel.engine.buffers import list_buffers
from phalanx.parallel.engine.extra import decode_extra, encode_extra
from phalanx.parallel.engine.holders import Holding
from phalanx.parallel.engine.report import Report
from phalanx.parallel.engine.sync import Stance, StateSpec, describe_state, list_state, load_state, make_state
from phalanx.parallel.optimizer import Leaf, Leaves, check_names, check_taken, gather, scatter, wants_on_device
from phalanx.parallel.reduction import fingerprints

State = Mapping[str, Mapping[str, torch.Tensor]]


class Replica:
    """The model and its training state on one rank.

    ``make_optimizer`` gets all leaves. If the ranks share the optimizer, it keeps state only for the leaves that this
    rank holds: at first all of them, and then those that ``hold`` says.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        leaves: Leaves,
        make_optimizer: Callable[[list[Leaf]], torch.optim.Optimizer],
        *,
        is_sharing: bool,
    ) -> None:
        self.model = model
        self.leaves = leaves
        self.is_sharing = is_sharing
        self.step = 0
        """The next step."""
        self.report: Report | None = None
        """The report of the last step."""
        self.extra: dict[str, Any] = {}  # Any: plain values and arrays
        self._extra_at_report = b""
        self.held: frozenset[int] = frozenset(range(len(leaves.leaves)))
        """The numbers of the leaves whose optimizer state of this step is here. Their weights are, too."""
        self.is_whole = True
        """Whether all weights of this step are here, those of other leaves, too."""
        self._owned = sorted(self.held)  # the leaves that this rank saves
        self.shard = (0, 1)  # its number among the ranks that share the optimizer, and how many these are
        self.tensors: list[tuple[str, torch.Tensor]] = [*model.named_parameters(), *model.named_buffers()]
        self.digested: list[tuple[str, torch.Tensor]] = [*model.named_parameters(), *list_buffers(model)]
        """The tensors that a digest is made of: those of the checkpoint."""
        self.optimizer = make_optimizer(leaves.leaves)
        check_taken(self.optimizer, leaves.leaves)

    def hold(self, holding: Holding, rank: int, size: int) -> None:
        """Keep the optimizer state that this rank holds from now on as one of ``size``, and drop the rest."""
        self.held = holding.of(rank)
        self.leaves.choose(self.held)
        for number, leaf in enumerate(self.leaves.leaves):
            if number not in self.held:
                self.optimizer.state.pop(leaf.block, None)
        if self.is_sharing:
            self._owned = [number for number, owner in enumerate(holding.owners) if owner == rank]
            self.shard = (rank, size)

    def fingerprint(self) -> list[int]:
        """Return a fingerprint of each weight and buffer."""
        return fingerprints([tensor for _, tensor in self.digested])

    def conclude(self, report: Report, extra: bytes, *, is_whole: bool) -> None:
        """Go on to the next step. ``extra`` is the user's state when the report is returned.

        The leaves held here are updated. If this is not ``is_whole``, the weights of others are still to come.
        """
        self.report = report
        self.is_whole = is_whole
        self._extra_at_report = extra
        self.step += 1

    def restore_extra(self) -> None:
        """Set the user's state to what it was when the last report was returned."""
        self.replace_extra(decode_extra(self._extra_at_report))

    def replace_extra(self, extra: Mapping[str, Any]) -> None:
        """Replace what is in the user's state. The dict stays: the user may have a name for it."""
        kept = dict(extra)
        self.extra.clear()
        self.extra.update(kept)

    # For a checkpoint

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return weights, buffers and this rank's optimizer state by name."""
        rank, size = self.shard
        shard = {"shard": {"rank": torch.tensor(rank), "size": torch.tensor(size)}} if size > 1 else {}
        kept = gather(self.optimizer.state, [self.leaves.leaves[number] for number in self._owned])
        return {"model": self.model.state_dict(), "optimizer": kept, **shard}

    def load(self, state: State, step: int) -> None:
        """Load what ``state`` has returned on this rank, or the joined state of all ranks of any group."""
        found = {key: int(value) for key, value in state.get("shard", {}).items()}
        rank, size = self.shard
        is_own = found == {"rank": rank, "size": size} and self.held == set(self._owned)  # else a part is missing
        if found and not is_own:
            raise ConfigError(
                f"this optimizer state is the shard of rank {found['rank']} of {found['size']}, and this is rank "
                f"{rank} of {size} that share one: save with phalanx.train.checkpoint.save_together, which joins the "
                "shards of all ranks"
            )
        check_names(state["optimizer"], [leaf.name for leaf in self.leaves.leaves])
        held = [self.leaves.leaves[number] for number in sorted(self.held)]
        kept = scatter(state["optimizer"], held, on_device=wants_on_device(self.optimizer))
        self.model.load_state_dict(state["model"])
        self.optimizer.state.update(kept)
        self.step = step

    # For newcomers to an elastic run

    def describe_extra(self) -> bytes:
        """Return the user's state as it was when the last report was returned.

        A newcomer begins with that report, and changes the state behind it as the others have done.
        """
        return self._extra_at_report if self.report else encode_extra(self.extra)

    def describe_groups(self) -> list[dict[str, Any]]:  # Any: numbers, words and None, as optimizers have them
        """Return the settings of the optimizer's groups."""
        left_out = ("params", "param_names")
        return [
            {key: value for key, value in group.items() if key not in left_out} for group in self.optimizer.param_groups
        ]

    def describe_state(self) -> list[StateSpec]:
        """Return what the optimizer keeps for its leaves."""
        return describe_state(self.optimizer, self.leaves.leaves)

    def list_state(self, number: int, *, has_weights: bool) -> list[torch.Tensor]:
        """Return what the optimizer keeps for a leaf, in the order of ``describe_state``, maybe behind its weights."""
        leaf = self.leaves.leaves[number]
        return [*([leaf.block.data] if has_weights else []), *list_state(self.optimizer, leaf)]

    def make_state(self, specs: Iterable[StateSpec]) -> list[torch.Tensor]:
        """Return room for the optimizer state that a holder describes."""
        return make_state(specs, self.leaves.leaves, on_device=wants_on_device(self.optimizer))

    def follow(self, source: Stance, *, is_whole: bool) -> None:
        """Continue where ``source`` is, without optimizer state as yet. If it ``is_whole``, all weights are here.

        The user gets the state of ``source`` with its report, by ``restore_extra``.
        """
        self.optimizer.state.clear()
        self.held, self.is_whole = frozenset(), is_whole
        for group, settings in zip(self.optimizer.param_groups, source.settings, strict=True):
            group.update(settings)
        self.step, self.report = source.step, source.report
        self._extra_at_report = source.extra
        if self.report is None:
            self.restore_extra()

    def take_over(self, numbers: Iterable[int], specs: Iterable[StateSpec], state: Iterable[torch.Tensor]) -> None:
        """Hold these leaves, too. Their optimizer state has arrived."""
        load_state(self.optimizer, self.leaves.leaves, specs, state)
        self.held |= set(numbers)

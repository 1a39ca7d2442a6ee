"""What a rank holds of a training: weights, buffers, optimizer state, and the step at which they stand."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from phalanx.elastic import Holding, MemberState, StepProgress
from phalanx.errors import ConfigError
from phalanx.parallel.engine.buffers import list_buffers
from phalanx.parallel.engine.extra import decode_extra, encode_extra
from phalanx.parallel.engine.report import Report
from phalanx.parallel.engine.sync import Introduction, StateSpec, describe_state, list_state, load_state, make_state
from phalanx.parallel.optimizer import Leaf, Leaves, check_names, check_taken, gather, scatter, wants_on_device
from phalanx.parallel.reduction import fingerprints

State = Mapping[str, Mapping[str, torch.Tensor]]


class Replica(MemberState):
    """The model and its training state on one rank.

    ``make_optimizer`` gets all leaves. If the ranks share the optimizer, it keeps state only for the leaves that this
    rank holds: at first all of them, and then those that ``keep_shard`` says.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        leaves: Leaves,
        make_optimizer: Callable[[list[Leaf]], torch.optim.Optimizer],
        *,
        is_sharing: bool,
    ) -> None:
        super().__init__(len(leaves.leaves), is_sharing=is_sharing)
        self.model = model
        self.leaves = leaves
        self.report: Report | None = None
        """The report of the last step."""
        self.extra: dict[str, Any] = {}  # Any: plain values and arrays
        self._extra_at_report = b""
        self._stream: torch.cuda.Stream | None = None
        self._owned = sorted(self.held)  # the leaves that this rank saves
        self.shard = (0, 1)  # its number among the ranks that share the optimizer, and how many these are
        self.tensors: list[tuple[str, torch.Tensor]] = [*model.named_parameters(), *model.named_buffers()]
        self.digested: list[tuple[str, torch.Tensor]] = [*model.named_parameters(), *list_buffers(model)]
        """The tensors that a digest is made of: those of the checkpoint."""
        self.optimizer = make_optimizer(leaves.leaves)
        check_taken(self.optimizer, leaves.leaves)

    def keep_shard(self, holding: Holding, rank: int, size: int) -> None:
        """Keep the optimizer state that this rank holds from now on as one of ``size``, and drop the rest."""
        self.hold(holding, rank)
        self.leaves.choose(self.held)
        for number, leaf in enumerate(self.leaves.leaves):
            if number not in self.held:
                self.optimizer.state.pop(leaf.block, None)
        if self.is_sharing:
            self._owned = [number for number, owner in enumerate(holding.owners) if owner == rank]
            self.shard = (rank, size)

    def note_weights(self) -> "torch.cuda.Event | None":
        """Return when a GPU has the present weights, for a ``fingerprint`` that need not wait for later work.

        Lanes change buffers for a while, so the fingerprint of a model that has some waits in any case.
        """
        device = self.digested[0][1].device
        if device.type != "cuda" or not all(isinstance(each, torch.nn.Parameter) for _, each in self.digested):
            return None
        return torch.cuda.current_stream(device).record_event()

    def fingerprint(self, ready: "torch.cuda.Event | None" = None) -> list[int]:
        """Return a fingerprint of each weight and buffer, beside other work of the GPU if they are ``ready``."""
        tensors = [tensor for _, tensor in self.digested]
        if ready is None:
            return fingerprints(tensors)
        if self._stream is None:
            self._stream = torch.cuda.Stream(tensors[0].device)
        self._stream.wait_event(ready)
        with torch.cuda.stream(self._stream):
            return fingerprints(tensors)

    def conclude(self, report: Report, extra: bytes, *, is_whole: bool) -> None:
        """Go on to the next step. ``extra`` is the user's state when the report is returned.

        The leaves held here are updated. If this is not ``is_whole``, the weights of others are still to come.
        """
        self.report = report
        self._extra_at_report = extra
        self.advance(is_whole=is_whole)

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
        kept = gather(
            self.leaves.with_masters(self.optimizer.state, self._owned),
            [self.leaves.leaves[number] for number in self._owned],
        )
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
        self.leaves.take_masters(kept)
        self.optimizer.state.update(kept)
        self.step = step

    # For newcomers to an elastic run

    def introduce(self, progress: StepProgress[Any, Any]) -> Introduction:
        """Return what this member says at the start of an epoch.

        The user's state is that of the time when the last report was returned. A newcomer begins with that report, and
        changes the state behind it as the others have done.
        """
        left_out = ("params", "param_names")
        settings = [
            {key: value for key, value in group.items() if key not in left_out} for group in self.optimizer.param_groups
        ]
        state = describe_state(self.optimizer, self.leaves.leaves)
        extra = self._extra_at_report if self.report else encode_extra(self.extra)
        return Introduction(self.describe(progress), self.report, settings, state, extra)

    def list_state(self, number: int, *, has_weights: bool) -> list[torch.Tensor]:
        """Return what the optimizer keeps for a leaf, in the order of ``describe_state``, maybe behind its weights."""
        leaf = self.leaves.leaves[number]
        return [*([leaf.block.data] if has_weights else []), *list_state(self.optimizer, leaf)]

    def make_state(self, specs: Iterable[StateSpec]) -> list[torch.Tensor]:
        """Return room for the optimizer state that a holder describes."""
        return make_state(specs, self.leaves.leaves, on_device=wants_on_device(self.optimizer))

    def follow_member(self, source: Introduction, *, is_whole: bool) -> None:
        """Continue where ``source`` is, without optimizer state as yet. If it ``is_whole``, all weights are here.

        The user gets the state of ``source`` with its report, by ``restore_extra``.
        """
        self.optimizer.state.clear()
        for group, settings in zip(self.optimizer.param_groups, source.settings, strict=True):
            group.update(settings)
        self.follow(source.stance, is_whole=is_whole)
        self.report = source.report
        self._extra_at_report = source.extra
        if self.report is None:
            self.restore_extra()

    def load_arrived(self, specs: Iterable[StateSpec], state: Iterable[torch.Tensor]) -> None:
        """Give the optimizer state that has arrived from other members."""
        load_state(self.optimizer, self.leaves.leaves, specs, state)

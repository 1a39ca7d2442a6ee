"""ZeRO-1: an optimizer that is sharded over the ranks, and gives the weights of the full optimizer, bit for bit."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from phalanx.errors import ConfigError
from phalanx.group import Group
from phalanx.parallel.data_parallel import DataParallel, count_scaler_changes
from phalanx.parallel.optimizer import check_names, gather, scatter, wants_on_device
from phalanx.parallel.reduction import Block, Ownership, Unit, Way, compare, parse
from phalanx.parallel.zero.arrivals import Arrivals
from phalanx.parallel.zero.elementwise import check_class, choose_unit
from phalanx.parallel.zero.full_state import collect, labels_of_full, make_full
from phalanx.parallel.zero.groups import (
    check_once,
    describe,
    find_defaults,
    find_homes,
    list_groups,
    name_parameters,
    settings_of,
)
from phalanx.parallel.zero.shard import Shard, share_out


class ZeroOptimizer(torch.optim.Optimizer):  # type: ignore[misc]  # torch is untyped to mypy
    """An optimizer whose state is sharded: each rank updates the blocks that it owns and sends them to the others.

    The parameters belong to a ``DataParallel``, which from now on gives each rank only the means of its own blocks. If
    a trial shows that ``optimizer_class`` is element-wise, parameters are cut into blocks; else each has one owner.
    ``unit`` (block, parameter, layer) and ``way`` (balanced, contiguous, round-robin) choose otherwise. Narrow
    parameters are updated in f32. With ``overlap`` weights arrive during the next forward pass: call ``wait()`` before
    you read them or call the group yourself. ``settings`` are passed to the class.
    """

    _step_supports_amp_scaling = True  # so that GradScaler says whether it has touched the gradients

    def __init__(
        self,
        params: Iterable[Any],  # Any: all that torch's optimizers take
        optimizer_class: type[torch.optim.Optimizer],
        *,
        group: Group,
        unit: Unit | str | None = None,
        way: Way | str = Way.BALANCED,
        overlap: bool = False,
        **settings: Any,  # Any: as the class takes them
    ) -> None:
        check_class(optimizer_class)
        groups = list_groups(params)
        self._group = group
        self._way = parse(Way, way)
        self._make: Callable[..., torch.optim.Optimizer] = lambda given: optimizer_class(given, **settings)
        check_once(groups)
        defaults = find_defaults(self._make, groups)
        device = next(each.device for one in groups for each in one["params"])
        self._unit = choose_unit(unit, self._make, map(settings_of, groups), device)
        self._overlap = overlap
        self._mark = object()  # by which others know this optimizer, without keeping it
        self._arrivals = Arrivals()
        self._homes: list[DataParallel] = []
        self._names: dict[int, str] = {}
        self._ownership = Ownership((), ())
        self._shards: list[Shard] = []
        self._optimizer: torch.optim.Optimizer | None = None
        self._check(groups, f"{optimizer_class.__qualname__} with {settings} by {self._unit.value}, {self._way.value}")
        super().__init__(groups, defaults)
        self._shards = self._share_out(self.param_groups)
        self._optimizer = self._make(
            [_own_group(one, shard) for one, shard in zip(self.param_groups, self._shards, strict=True)]
        )
        self.state = self._optimizer.state
        """The state of this rank, by its own blocks of the parameters."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own. All ranks add the same, and the state of the others is kept."""
        if self._optimizer is None:  # torch's constructor calls this for each of the first groups
            super().add_param_group(param_group)
            return
        self.wait()
        (one,) = list_groups([param_group])
        check_once([*self.param_groups, one])
        find_defaults(self._make, [one])
        choose_unit(self._unit, self._make, [settings_of(one)], one["params"][0].device)
        self._check([one], "one more")
        super().add_param_group(one)
        self._shards += self._share_out(self.param_groups[-1:])
        self._optimizer.add_param_group(_own_group(self.param_groups[-1], self._shards[-1]))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # Any: whatever the closure gives
        """Update this rank's shard and get the updated blocks of the others. All ranks call this together."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found = getattr(self, "found_inf", None)  # by a GradScaler, which has then changed the gradients
        changes = 0 if found is None else count_scaler_changes(found.device.type)
        for home in self._homes:
            home.check_gradients(self._mark, self._names, changes)
        if found is None or not found.item():
            with torch.no_grad():
                self._update()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - as torch's
        """Forget all gradients."""
        super().zero_grad(set_to_none)
        for home in self._homes:
            home.forget_gradients(self._names)

    def wait(self) -> None:
        """Return when all weights of the last step have arrived; without ``overlap`` they have."""
        self._arrivals.wait()

    # State

    def labelled_state(self) -> dict[str, torch.Tensor]:
        """Return this rank's state by label: ``name.key[start:stop]``, or ``name.key`` for a whole parameter."""
        return self._gather(is_joined=True)

    def _gather(self, *, is_joined: bool) -> dict[str, torch.Tensor]:
        kept = {leaf.block: dict(self.state.get(leaf.block, {})) for shard in self._shards for leaf in shard.leaves}
        for shard in self._shards:
            for block in shard.masters():
                kept[block]["master"] = block.data
        return gather(kept, [leaf for shard in self._shards for leaf in shard.leaves], is_joined=is_joined)

    def load_labelled_state(self, labelled: Mapping[str, torch.Tensor]) -> None:
        """Load the ``labelled_state`` of all ranks of a group of any size. This rank reads only its own shard of it.

        The present state is replaced. If some of the shard is missing, nothing is changed.
        """
        assert self._optimizer
        check_names(labelled, list(self._names.values()))
        leaves = [leaf for shard in self._shards for leaf in shard.leaves]
        found = scatter(labelled, leaves, on_device=wants_on_device(self._optimizer))
        for shard in self._shards:
            shard.take_masters(found)
        self.state.clear()
        self.state.update(found)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's shard, for the same rank of a group of the same size; ``consolidate`` returns all."""
        groups = [
            {**settings_of(one), "params": [self._names[id(each)] for each in one["params"]]}
            for one in self.param_groups
        ]
        return {"state": self.labelled_state(), "param_groups": groups, "shard": self._place()}

    def load_state_dict(self, state_dict: Mapping[str, Any] | None) -> None:
        """Load this rank's shard or, on every rank, the full state of ``consolidate`` or of a plain optimizer."""
        if state_dict is None:
            raise ConfigError("there is no state to load: consolidate() gives it to one rank, which must pass it on")
        shard, ours = state_dict.get("shard"), self._place()
        if shard not in (None, ours):
            raise ConfigError(
                f"this is the shard of rank {shard['rank']} of {shard['size']}, and here is rank {ours['rank']} of "
                f"{ours['size']}: load what consolidate() gives, or a checkpoint"
            )
        groups = state_dict["param_groups"]
        if [len(one["params"]) for one in groups] != [len(one["params"]) for one in self.param_groups]:
            raise ConfigError("the state has other groups of parameters than this optimizer: make it as it was then")
        names = [self._names[id(each)] for one in self.param_groups for each in one["params"]]
        self.load_labelled_state(state_dict["state"] if shard else labels_of_full(state_dict, names))
        for one, loaded in zip(self.param_groups, groups, strict=True):
            one.update(settings_of(loaded))

    def consolidate(self, to: int = 0) -> dict[str, Any] | None:
        """Return the whole state on rank ``to``, as a full optimizer's ``state_dict``. All ranks call this together.

        It travels one tensor at a time, so rank ``to`` holds the whole, one more tensor, and its own shard.
        """
        shapes = {self._names[id(each)]: each.shape for one in self.param_groups for each in one["params"]}
        self.wait()
        found = collect(self._gather(is_joined=False), shapes, self._group, to)
        groups = [
            ({key: value for key, value in one.items() if key != "params"}, len(one["params"]))
            for one in self.param_groups
        ]
        return None if found is None else make_full(found, list(shapes), groups)

    def state_bytes(self) -> int:
        """Return the bytes of this rank's state, counted in its tensors."""
        kept = [value for each in self.state.values() for value in each.values() if isinstance(value, torch.Tensor)]
        masters = [block for shard in self._shards for block in shard.masters()]
        return sum(each.nbytes for each in kept + masters)

    def _place(self) -> dict[str, int]:
        return {"rank": self._group.rank, "size": self._group.size}

    # Making and updating

    def _check(self, groups: list[dict[str, Any]], words: str) -> None:
        """Raise ConfigError unless these parameters can be added, on all ranks alike."""
        homes = find_homes(groups, self._group)
        names = name_parameters(groups, homes, self._names)
        named = [(names[id(each)], each) for one in groups for each in one["params"]]
        compare(named, self._group, words, *map(describe, groups))
        self._names |= names
        for home in homes:
            if home not in self._homes:
                self._homes.append(home)
                if self._overlap:
                    self._arrivals.watch(home.module)

    def _share_out(self, groups: Iterable[Mapping[str, Any]]) -> list[Shard]:
        """Choose the owners of these parameters, and make each ``DataParallel`` send means only to them."""
        shared: list[tuple[list[tuple[str, torch.nn.Parameter]], Ownership]] = []
        for group in groups:
            chosen = [each for each in group["params"] if each.numel() and self._can_train(each)]
            named = [(self._names[id(each)], each) for each in chosen]
            before = [self._ownership.elements(rank) for rank in range(self._group.size)]
            ownership = share_out(named, self._unit, self._way, before)
            self._ownership += ownership
            shared.append((named, ownership))
        for home in self._homes:
            numbers = {id(parameter): number for number, (_, parameter) in enumerate(home.trained)}
            pairs = [
                (Block(numbers[id(named[block.parameter][1])], block.start, block.stop), owner)
                for named, ownership in shared
                for block, owner in zip(ownership.blocks, ownership.owners, strict=True)
                if id(named[block.parameter][1]) in numbers
            ]
            if pairs:
                home.shard(Ownership(*(tuple(each) for each in zip(*pairs, strict=True))), self._mark)
        through_host = any(home.through_host for home in self._homes)
        return [Shard(named, ownership, self._group, through_host=through_host) for named, ownership in shared]

    def _can_train(self, parameter: torch.Tensor) -> bool:
        """Return whether a parameter gets gradients, or, in a group of one, may get some later."""
        return bool(parameter.requires_grad or (self._group.size == 1 and parameter.is_floating_point()))

    def _update(self) -> None:
        assert self._optimizer
        self.wait()
        for shard in self._shards:
            shard.check()
        scale = getattr(self, "grad_scale", None)
        factor = None if scale is None else float(scale.double().reciprocal().float())  # as GradScaler has it
        for shard, one, own in zip(self._shards, self.param_groups, self._optimizer.param_groups, strict=True):
            own.update(settings_of(one))  # which schedulers change
            shard.begin(factor)
        self._optimizer.step()
        for shard in self._shards:
            shard.end()
        for shard in self._shards:
            for arrival in shard.share():
                self._arrivals.put(arrival)
        if not self._overlap:
            self.wait()


def _own_group(group: Mapping[str, Any], shard: Shard) -> dict[str, Any]:
    return {**settings_of(group), "params": [leaf.block for leaf in shard.leaves]}

"""A model of your own on many ranks: its gradients are averaged over them while backward goes on."""

import copy
import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from phalanx.buffers import DType
from phalanx.errors import ConfigError, PhalanxError
from phalanx.group import Group
from phalanx.parallel.data_parallel.ddp_habits import check_ignored, without_prefix
from phalanx.parallel.data_parallel.gradient_versions import GradientVersions
from phalanx.parallel.data_parallel.loop_clock import LoopClock
from phalanx.parallel.data_parallel.norm import measure, scale
from phalanx.parallel.data_parallel.same_inputs import InputCheck
from phalanx.parallel.reduction import (
    BUCKET_BYTES,
    GPU_BUCKET_BYTES,
    Ownership,
    ParameterSpec,
    Reducer,
    Summary,
    broadcast,
    clip_factor,
    compare,
    dtype_of,
    is_staged,
    lay_out,
    non_finite,
    refuse_synced_norms,
)
from phalanx.telemetry import OFF, Recorder


class DataParallel(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """A module whose ranks keep equal weights: each computes with samples of its own, and gradients are averaged.

    All ranks make it together, of the same model, and begin with rank 0's weights and buffers. ``backward`` returns
    when ``.grad`` holds the mean, with the same bits on every rank; it raises what went wrong with the exchange. If a
    gradient is not finite, every rank raises ``NonFiniteGradient``, which names rank, parameter and step; pass
    ``allow_non_finite=True`` for a loop that deals with it, as one with a ``GradScaler`` does. A bucket leaves when
    ``bucket_bytes`` of gradients are there, by default 8 MiB, and 32 MiB on a GPU. ``wire="bf16"`` halves what f32
    gradients cost between hosts. Names in ``state_dict`` are those of the ``module``; ``load_state_dict`` also takes
    those of torch's DDP, which begin with ``module.``. ``copy.deepcopy`` returns a copy of the plain ``module``, as an
    average of weights needs it. Ranks on one GPU exchange there, unless gradients shall go ``through_host``;
    ``explain`` says which way they go. ``recorder`` records what this rank does when.

    These arguments of DDP are accepted and ``ignored``: ``device_ids``, ``output_device`` and ``dim`` (inputs are not
    moved to a device), ``broadcast_buffers`` and ``init_sync`` (always), ``find_unused_parameters``, ``static_graph``
    and ``skip_all_reduce_unused_params`` (any parameter may be unused in any step), ``gradient_as_bucket_view``
    (always), ``bucket_cap_mb`` (see ``bucket_bytes``) and ``check_reduction``.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group,
        *,
        bucket_bytes: int | None = None,
        wire: DType | str | None = None,
        allow_non_finite: bool = False,
        through_host: bool = False,
        recorder: Recorder = OFF,
        **ignored: object,
    ) -> None:
        super().__init__()
        check_ignored(ignored)
        if group.size > 1 and not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            refuse_synced_norms(module)  # without torch.distributed, they quietly see one rank
        self.module = module
        self.group = group
        self.through_host = through_host
        self._bucket_bytes = bucket_bytes
        self._wire = None if wire is None else DType.parse(wire)
        if self._wire not in (None, DType.BF16):
            raise ConfigError(f"gradients travel as they are, or f32 as bf16, not as {self._wire.label}: change wire")
        self._allow_non_finite = allow_non_finite
        self._is_exchanging = False
        self._steps = 0
        self._recorder = recorder
        self._clock = LoopClock(recorder, group)
        if recorder.is_on:
            group.record_to(recorder)
        self._inputs = InputCheck(group.rank)
        self._weight = 1.0
        self._is_synchronised = True
        self._leader = 0
        self._norm: float | None = None  # of the gradients as the last exchange left them
        self._ownership = Ownership((), ())
        self._optimizers: dict[int, object] = {}
        self._versions = GradientVersions()
        self._marked: list[torch.Tensor] = []
        self._hooks: list[Any] = []  # Any: torch is untyped
        weakref.finalize(self, _remove, self._hooks).atexit = False
        named = [*module.named_parameters(), *module.named_buffers()]
        settings = f"bucket_bytes={bucket_bytes}", f"wire={self._wire and self._wire.label}"
        compare(named, group, *settings, f"allow_non_finite={allow_non_finite}")
        broadcast([tensor for _, tensor in named], group)
        parameters = list(module.named_parameters()) if group.size > 1 else []  # alone there is nothing to average
        self._frozen = [(name, each) for name, each in parameters if not each.requires_grad]
        self._trained = [(name, each) for name, each in parameters if each.requires_grad and each.numel()]
        self._prepare()
        group.companions.add(self)

    def forward(self, *inputs: Any, **named: Any) -> Any:  # Any: whatever the module takes and gives
        """Return what the module does."""
        if not self._recorder.is_on:  # torch.compile cannot see through clocks
            return self.module(*inputs, **named)
        self._clock.begin_forward()
        result = self.module(*inputs, **named)
        self._clock.end_forward()
        return result

    def weigh(self, count: float) -> None:
        """Make this rank's gradient count ``count`` times in the next exchange: its samples, or its tokens.

        This holds for one exchange, and for all that has been added up since the last. Otherwise a rank counts once.
        """
        if not 0 <= count < float("inf"):
            raise ConfigError(f"a rank's gradient counts 0 times or more, not {count}: pass its samples or tokens")
        self._weight = float(count)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients add up in ``.grad`` without an exchange; the first backward after this block exchanges all."""
        before, self._is_synchronised = self._is_synchronised, False
        try:
            yield
        finally:
            self._is_synchronised = before

    @contextmanager
    def join(self, update: Callable[[], object] | None = None) -> Iterator[None]:
        """Let ranks go through the loop in this block a different number of times.

        A rank that is through takes part in the others' exchanges, counting 0 times, and calls ``update`` after each:
        what the loop does with gradients, such as ``optimizer.step`` and ``zero_grad``, so that the optimizers stay
        equal, too. When all are through, every rank gets the weights and buffers of one of the last.
        """
        yield
        while self._follow():
            if update is not None:
                update()
        broadcast([*self.module.parameters(), *self.module.buffers()], self.group, self._leader)

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Return the norm of all gradients, and scale them down to ``max_norm`` if it is larger; all ranks call this.

        The norm has the same bits on all ranks, whether an optimizer has sharded the parameters or not. It was measured
        during the exchange; only if gradients were changed since is it measured again, in a call of the group.
        """
        if not max_norm > 0:
            raise ConfigError(f"a norm is clipped to more than 0, not to {max_norm}")
        parameters = [each for _, each in self._trained] if self.group.size > 1 else list(self.module.parameters())
        gradients = {name: each.grad for name, each in self._trained if each.grad is not None}
        norm = self._norm if self._versions.are_unchanged(gradients) else None
        if norm is None:
            norm = measure(parameters, self.group, self._ownership)
        if (factor := clip_factor(norm, max_norm)) < 1:
            self._norm = None
            with self._versions.allowing():
                scale(parameters, factor, self.group.rank, self._ownership)
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - as torch's
        """Forget all gradients."""
        super().zero_grad(set_to_none)
        self._versions.clear()

    def explain(self) -> str:
        """Return where gradients meet, and why."""
        if not self._trained:
            return "there is nothing to exchange"
        return self._reducer.explain()

    def close(self) -> None:
        """End all exchanges; from then on the module trains by itself. Closing twice is harmless."""
        _remove(self._hooks)

    # Names are the module's own

    def state_dict(self, *arguments: Any, **named: Any) -> Any:  # Any: as torch's
        """Return the module's."""
        return self.module.state_dict(*arguments, **named)

    def load_state_dict(self, state_dict: Any, *arguments: Any, **named: Any) -> Any:  # Any: as torch's
        """Load the module's, or that of a DDP around it; every rank loads the same."""
        own = self.module.state_dict().keys()
        return self.module.load_state_dict(without_prefix(state_dict, own), *arguments, **named)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:  # Any: as copy's
        return copy.deepcopy(self.module, memo)

    def named_parameters(self, *arguments: Any, **named: Any) -> Any:  # Any: as torch's
        """Yield the module's."""
        return self.module.named_parameters(*arguments, **named)

    def named_buffers(self, *arguments: Any, **named: Any) -> Any:  # Any: as torch's
        """Yield the module's."""
        return self.module.named_buffers(*arguments, **named)

    # Sharding: an optimizer on each rank needs only some of the means

    @property
    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters whose gradients are exchanged, with their names."""
        return list(self._trained)

    def shard(self, ownership: Ownership, optimizer: object) -> None:
        """From now on, give each rank only the means of the blocks it owns; their parameters are those of ``trained``.

        The means are for the ``optimizer`` that shows this value. Parameters without a block in ``ownership`` are
        exchanged as before; the others forget who owned them.
        """
        self._optimizers |= dict.fromkeys({block.parameter for block in ownership.blocks}, optimizer)
        pairs = zip(self._ownership.blocks, self._ownership.owners, strict=True)
        kept = [(block, owner) for block, owner in pairs if not ownership.has(block.parameter)]
        self._ownership = Ownership(tuple(each for each, _ in kept), tuple(each for _, each in kept)) + ownership
        self._prepare()

    def check_gradients(self, optimizer: object, ids: Container[int], changes: int) -> None:
        """Raise ConfigError unless an optimizer can use its gradients, whose parameters have these ``ids``.

        They must have been changed in place so many times since they were exchanged.
        """
        for number, (name, parameter) in enumerate(self._trained):
            if id(parameter) not in ids or not self._ownership.has(number):
                continue
            if self._optimizers[number] is not optimizer:
                raise ConfigError(f"{name} has got another optimizer since: go on with that one, or make a new one")
            if parameter.grad is not None:
                self._versions.check(name, parameter.grad, changes)

    def forget_gradients(self, ids: Container[int]) -> None:
        """Let gradients be added to what these parameters have in ``.grad`` now: it was set to zero."""
        for name, parameter in self._trained:
            if id(parameter) in ids:
                self._versions.forget(name)

    # One exchange

    def _prepare(self) -> None:
        """Make a reducer for the parameters as they are now, and ask autograd for their gradients."""
        _remove(self._hooks)
        if not self._trained:
            return
        specs = [
            ParameterSpec(name, each.numel(), dtype_of(each), self._ownership.has(number))
            for number, (name, each) in enumerate(self._trained)
        ]
        device = self._trained[0][1].device
        default = GPU_BUCKET_BYTES if is_staged(device) else BUCKET_BYTES
        self._reducer = Reducer(
            lay_out(specs, default if self._bucket_bytes is None else self._bucket_bytes),
            self.group,
            device,
            lanes=self.group.size,
            ownership=self._ownership,
            wire=self._wire,
            are_means=True,
            extra=self.group.size,
            through_host=self.through_host,
            recorder=self._recorder,
        )
        self._places = [
            self._reducer.contribution(number).view(each.shape) for number, (_, each) in enumerate(self._trained)
        ]
        self._hooks += self._inputs.watch(self.module)
        for number, (_, parameter) in enumerate(self._trained):
            if parameter.requires_grad:  # which may have changed; then what it has is exchanged at the end
                hook = _make_hook(weakref.ref(self), number)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))

    def _apply(self, *arguments: Any, **named: Any) -> Self:  # Any: as torch's, which calls this for to(), half(), ...
        before = [(each.dtype, each.device) for _, each in self._trained]
        super()._apply(*arguments, **named)
        if before != [(each.dtype, each.device) for _, each in self._trained]:
            self._prepare()
        return self

    def arrive(self, number: int) -> None:
        """Take the gradient that a parameter has just got; called in the middle of backward."""
        if not self._is_synchronised:
            return
        name, parameter = self._trained[number]
        self._versions.check_empty(name, parameter.grad)  # before others are told of anything
        if not self._is_exchanging:
            self._begin(self._weight, is_active=True)
            self._weight = 1.0
            torch.autograd.Variable._execution_engine.queue_callback(self._end)  # noqa: SLF001 - there is no public way
        try:
            self._put(number)
        except PhalanxError:
            self._is_exchanging = False  # this exchange is over, and autograd will not call _end
            raise

    def _begin(self, weight: float, *, is_active: bool) -> None:
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise ConfigError(f"{name} was frozen when this DataParallel was made: make a new one to train it")
        self._reducer.begin()
        self._inputs.tell(self._reducer.summary.extra)
        self._reducer.start_lane(self.group.rank, weight, is_active=is_active)
        self._is_exchanging = True

    def _put(self, number: int) -> None:
        """Put the gradient of a parameter into the reducer, whose memory becomes the parameter's ``.grad``."""
        name, parameter = self._trained[number]
        gradient = parameter.grad
        if gradient is not None:
            if gradient.layout is not torch.strided:
                raise ConfigError(
                    f"the gradient of {name} is sparse, and only dense ones are averaged: use sparse=False"
                )
            self._versions.check_empty(name, gradient)
            place = self._places[number]
            if gradient.data_ptr() != place.data_ptr():
                parameter.grad = place.data  # what was there is free for the next gradient, while it is in cache
        self._reducer.put(number, gradient.detach() if gradient is not None and gradient.requires_grad else gradient)

    def _end(self) -> None:
        """Finish the exchange; autograd calls this at the end of backward."""
        self._is_exchanging = False
        for number in self._reducer.missing():
            self._put(number)
        self._clock.end_backward()
        gradients = [  # made while others still compute; to autograd this is no view to be detached
            place.view(parameter.shape).data
            for place, (_, parameter) in zip(self._reducer.own_places(), self._trained, strict=True)
        ]
        summary = self._reducer.finish()
        guilty = self._find_non_finite(summary)
        self._set_gradients(summary, gradients)
        counts, active = self._reducer.counts, self._reducer.active
        broadcast(self.module.buffers(), self.group, int(np.argmax(counts > 0)))
        self._leader = int(np.argmax(active))
        self._steps += 1
        self._clock.end_step(self._steps)
        self._inputs.end(summary.extra)
        if guilty is not None and not self._allow_non_finite:
            rank, number = guilty
            name = self._trained[number][0]
            raise non_finite(self._steps - 1, parameter=name, rank=rank)

    def _follow(self) -> bool:
        """Take part in one exchange of the ranks that still work; return False if there are none."""
        if not self._trained:
            return False
        self._begin(0.0, is_active=False)
        self._reducer.wait_for_counts()
        if not self._reducer.active.any():
            self._is_exchanging = False
            return False
        self.module.zero_grad()
        self._end()
        return True

    def _set_gradients(self, summary: Summary, gradients: Sequence[torch.Tensor]) -> None:
        """Set ``.grad`` of every parameter that some rank used to the mean, which is in ``gradients``."""
        self._versions.clear()
        self._norm = summary.norm
        self._mark_non_finite(summary, self._reducer.own_means())
        for number in np.flatnonzero(summary.used).tolist():
            name, parameter = self._trained[number]
            parameter.grad = gradients[number]
            self._versions.put(name, gradients[number], is_sharded=self._ownership.has(number))

    def _find_non_finite(self, summary: Summary) -> tuple[int | None, int] | None:
        """Return the first rank whose gradient is not finite, None if only the sum is not, and the parameter."""
        chunks = np.flatnonzero(~np.isfinite(summary.squares))
        if not len(chunks) or self._allow_non_finite:
            return None
        numbers = [self._reducer.layout.parameter_of_chunk(int(chunk)) for chunk in chunks]
        found = np.zeros(self.group.size)
        spoilt = [each for each in numbers if not torch.isfinite(self._reducer.contribution(each)).all()]
        if spoilt and self._reducer.counts[self.group.rank]:
            found[self.group.rank] = spoilt[0] + 1
        self.group.all_reduce(found)
        ranks = np.flatnonzero(found)
        return (int(ranks[0]), int(found[ranks[0]]) - 1) if len(ranks) else (None, numbers[0])

    def _mark_non_finite(self, summary: Summary, means: Sequence[torch.Tensor]) -> None:
        """Put a NaN into sharded means that are not finite on another rank: a GradScaler looks for one on each."""
        for marked in self._marked:
            marked.zero_()
        self._marked.clear()
        for chunk in np.flatnonzero(~np.isfinite(summary.squares)).tolist():
            number = self._reducer.layout.parameter_of_chunk(chunk)
            for block, owner in zip(self._ownership.blocks, self._ownership.owners, strict=True):
                if block.parameter == number and owner != self.group.rank:
                    self._marked.append(means[number][block.start : block.start + 1].fill_(torch.nan))
                    break


def _make_hook(model: "weakref.ref[DataParallel]", number: int) -> Callable[[torch.Tensor], None]:
    """Return a hook that does not keep the ``DataParallel`` alive."""

    def hook(_: torch.Tensor) -> None:
        if (found := model()) is not None:
            found.arrive(number)

    return hook


def _remove(hooks: list[Any]) -> None:  # Any: torch is untyped
    while hooks:
        hooks.pop().remove()

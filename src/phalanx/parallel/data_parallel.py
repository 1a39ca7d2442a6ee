"""A model of your own on many ranks: its gradients are averaged over them while backward goes on."""

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from phalanx.buffers import Array, DType
from phalanx.errors import ConfigError, PhalanxError
from phalanx.group import Group
from phalanx.parallel.agree import broadcast, compare
from phalanx.parallel.gradients import Parcel, make_parcels
from phalanx.parallel.marks import Marks
from phalanx.parallel.norm import clip
from phalanx.parallel.shards import Ownership
from phalanx.parallel.turn import Shares, Turn
from phalanx.transport import SerialExecutor


class DataParallel(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """A module whose ranks keep equal weights: each computes with samples of its own, and gradients are averaged.

    All ranks make it together, of the same model, and begin with rank 0's weights and buffers. ``backward`` returns
    when ``.grad`` holds the mean, with the same bits on every rank; it raises what went wrong with the exchange. A
    bucket leaves when ``bucket_bytes`` of gradients are there. ``wire="bf16"`` halves what f32 gradients cost between
    hosts. Names in ``state_dict`` are those of the ``module``.
    """

    def __init__(
        self, module: nn.Module, group: Group, *, bucket_bytes: int = 8 << 20, wire: DType | str | None = None
    ) -> None:
        super().__init__()
        self.module = module
        self.group = group
        self._bucket_bytes = bucket_bytes
        self._wire = None if wire is None else DType.parse(wire)
        if self._wire not in (None, DType.BF16):
            raise ConfigError(f"gradients travel as they are, or f32 as bf16, not as {self._wire.label}: change wire")
        self._line = SerialExecutor(f"phalanx-exchange-{group.rank}")
        self._turn: Turn | None = None
        self._weight = 1.0
        self._is_synchronised = True
        self._leader = 0
        self._ownership = Ownership((), ())
        self._optimizers: dict[int, object] = {}
        self._marks = Marks()
        self._hooks: list[Any] = []  # Any: torch is untyped
        named = [*module.named_parameters(), *module.named_buffers()]
        compare(named, group, f"bucket_bytes={bucket_bytes}", f"wire={self._wire and self._wire.label}")
        broadcast([tensor for _, tensor in named], group)
        parameters = list(module.named_parameters()) if group.size > 1 else []  # alone there is nothing to average
        self._frozen = [(name, each) for name, each in parameters if not each.requires_grad]
        self._trained = [(name, each) for name, each in parameters if each.requires_grad and each.numel()]
        self._prepare()
        group.companions.add(self)
        group.on_close(self.close)

    def forward(self, *inputs: Any, **named: Any) -> Any:  # Any: whatever the module takes and gives
        """Return what the module does."""
        return self.module(*inputs, **named)

    def weigh(self, count: float) -> None:
        """Have this rank's gradient count ``count`` times in the next exchange: its samples, or its tokens.

        It is for one exchange, and stands for all that has been added up since the last. Without it a rank counts once.
        """
        if not 0 <= count < float("inf"):
            raise ConfigError(f"a rank's gradient counts 0 times or more, not {count}: pass its samples or tokens")
        self._weight = float(count)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients add up in ``.grad`` without an exchange; the first backward behind this block exchanges all."""
        before, self._is_synchronised = self._is_synchronised, False
        try:
            yield
        finally:
            self._is_synchronised = before

    @contextmanager
    def join(self, update: Callable[[], object] | None = None) -> Iterator[None]:
        """Let ranks go through the loop in this block a different number of times.

        Who is through takes part in the others' exchanges, counting 0 times, and calls ``update`` after each: what the
        loop does with gradients, such as ``optimizer.step`` and ``zero_grad``, so that the optimizers stay equal, too.
        When all are through, everybody gets the weights and buffers of a rank that was so last.
        """
        yield
        while self._follow():
            if update is not None:
                update()
        broadcast([*self.module.parameters(), *self.module.buffers()], self.group, self._leader)

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Return the norm of all gradients, and scale them down to ``max_norm`` if it is larger; all ranks call this.

        The norm has the same bits on all ranks, whether an optimizer has sharded the parameters or not.
        """
        parameters = [each for _, each in self._trained] if self.group.size > 1 else list(self.module.parameters())
        with self._marks.allowing():
            return clip(parameters, max_norm, self.group, self._ownership)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - as torch's
        """Forget all gradients."""
        super().zero_grad(set_to_none)
        self._marks.clear()

    def close(self) -> None:
        """End the exchanging thread, and all exchanges; closing the group does it, too. Closing twice is harmless."""
        self._line.close()

    # Names are the module's own

    def state_dict(self, *arguments: Any, **named: Any) -> Any:  # Any: as torch's
        """Return the module's."""
        return self.module.state_dict(*arguments, **named)

    def load_state_dict(self, *arguments: Any, **named: Any) -> Any:  # Any: as torch's
        """Load the module's; every rank loads the same."""
        return self.module.load_state_dict(*arguments, **named)

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
        """From now on, let each rank have the means only of what it owns; entries are those of ``trained``.

        They are for the ``optimizer`` that shows this value. Parameters of which ``ownership`` has no piece are
        exchanged as they were; others forget who owned them before.
        """
        self._optimizers |= dict.fromkeys({piece.entry for piece in ownership.pieces}, optimizer)
        pairs = zip(self._ownership.pieces, self._ownership.owners, strict=True)
        kept = [(piece, owner) for piece, owner in pairs if not ownership.has(piece.entry)]
        self._ownership = Ownership(tuple(each for each, _ in kept), tuple(each for _, each in kept)) + ownership
        self._prepare()

    def check_gradients(self, optimizer: object, ids: Container[int], changes: int) -> None:
        """Return if an optimizer can use its gradients, whose parameters have these ``ids``, else raise ConfigError.

        They must have been changed in place so many times since they were exchanged.
        """
        for number, (name, parameter) in enumerate(self._trained):
            if id(parameter) not in ids or not self._ownership.has(number):
                continue
            if self._optimizers[number] is not optimizer:
                raise ConfigError(f"{name} has got another optimizer since: go on with that one, or make a new one")
            if parameter.grad is not None:
                self._marks.check(name, parameter.grad, changes)

    def forget_gradients(self, ids: Container[int]) -> None:
        """Let gradients be added to what these parameters have in ``.grad`` now: it was set to zero."""
        for name, parameter in self._trained:
            if id(parameter) in ids:
                self._marks.forget(name)

    # One exchange

    def _prepare(self) -> None:
        """Make memory for the gradients as the parameters are now, and ask to be told of them."""
        while self._hooks:
            self._hooks.pop().remove()
        self._parcels = make_parcels(self._trained, self.group, self._bucket_bytes, self._ownership)
        self._places = {
            number: place for each in self._parcels for number, place in zip(each.numbers, each.places, strict=True)
        }
        for number, (_, parameter) in enumerate(self._trained):
            if parameter.requires_grad:  # which may have changed; then what it has is exchanged at the end
                self._hooks.append(parameter.register_post_accumulate_grad_hook(partial(self._arrive, number)))

    def _apply(self, *arguments: Any, **named: Any) -> Self:  # Any: as torch's, which calls this for to(), half(), ...
        before = [(each.dtype, each.device) for _, each in self._trained]
        super()._apply(*arguments, **named)
        if before != [(each.dtype, each.device) for _, each in self._trained]:
            self._prepare()
        return self

    def _arrive(self, number: int, parameter: nn.Parameter) -> None:
        """A parameter has its gradient: autograd calls this in the middle of backward."""
        if not self._is_synchronised:
            return
        self._marks.check_empty(self._trained[number][0], parameter.grad)  # before others are told of anything
        if self._turn is None:
            self._turn = self._begin(self._weight, is_active=True)
            self._weight = 1.0
            torch.autograd.Variable._execution_engine.queue_callback(self._end)  # noqa: SLF001 - there is no public way
        self._put(self._turn, number)

    def _end(self) -> None:
        """Backward is through, but for this."""
        turn, self._turn = self._turn, None
        assert turn is not None, "who asks for this has begun a turn"
        self._finish(turn)

    def _begin(self, weight: float, *, is_active: bool) -> Turn:
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise ConfigError(f"{name} was frozen when this DataParallel was made: make a new one to train it")
        told = np.array([weight, is_active], np.float64)
        return Turn(self._parcels, self._line.submit("the gathering of what each rank counts for", self._gather, told))

    def _put(self, turn: Turn, number: int) -> None:
        """Take the gradient of a parameter along, and let every bucket go that is full and next."""
        name, parameter = self._trained[number]
        if number in turn.came:
            raise PhalanxError(
                f"{name} got a second gradient in one exchange: a backward before this one failed half-way, or {name} "
                "is in several checkpoints; end this rank, or checkpoint with use_reentrant=False"
            )
        place, gradient = self._places[number], parameter.grad
        if gradient is None:
            place.zero_()
        elif gradient.layout is not torch.strided:
            raise ConfigError(f"the gradient of {name} is sparse, and only dense ones are averaged: use sparse=False")
        elif gradient.data_ptr() == place.data_ptr():
            self._marks.check_empty(name, gradient)
        else:
            place.copy_(gradient.detach())
            parameter.grad = place.data  # and what was there is free for the next gradient, while it is in cache
        for parcel in turn.take(number):
            parcel.slot.show()
            turn.left.append(self._line.submit("the exchange of a bucket", self._exchange, parcel, turn))

    def _finish(self, turn: Turn) -> None:
        """Send what did not come, wait for everything, and put the means where people look for them."""
        for number in range(len(self._trained)):
            if number not in turn.came:
                self._put(turn, number)
        shares = turn.shares.wait()
        spoilt = {number for pending in turn.left for number in pending.wait()}
        flags = np.array(
            [[each.grad is not None, number in spoilt] for number, (_, each) in enumerate(self._trained)], np.uint8
        )
        self.group.all_reduce(flags, "max")
        spoilt = set(np.flatnonzero(flags[:, 1]).tolist())
        for parcel in self._parcels:
            parcel.settle(self.group.size)
            if spoilt:
                parcel.spoil(spoilt, self.group.rank)
        self._marks.clear()
        for number in np.flatnonzero(flags[:, 0]).tolist():
            name, parameter = self._trained[number]
            parameter.grad = self._places[number].data  # to autograd this is no view, which it could not detach
            if self._ownership.has(number):
                self._marks.put(name, parameter.grad)
        broadcast(self.module.buffers(), self.group, shares.first_with_weight)
        self._leader = shares.first_at_work

    def _follow(self) -> bool:
        """Take part in one exchange of those who still work; False if nobody does."""
        turn = self._begin(0.0, is_active=False)
        if not turn.shares.wait().is_anybody_at_work:
            return False
        self.module.zero_grad()
        self._finish(turn)
        return True

    # In the exchanging thread

    def _gather(self, told: Array) -> Shares:
        weights, active = self.group.all_gather(told).T
        return Shares(weights, active)

    def _exchange(self, parcel: Parcel, turn: Turn) -> set[int]:
        return parcel.exchange(self.group, turn.shares.wait().scale(self.group.rank), self._wire)

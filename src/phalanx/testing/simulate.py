"""Running the plans of a whole group in one thread, and refusing plans that do not fit together."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from phalanx.buffers import Array, DType, ReduceOp, finish, fold, widen
from phalanx.collectives.plan import Plan, Receive, Round, Then, length_of


class PlanError(AssertionError):
    """The plans of a group do not fit together: the message says in which round, at which ranks, and how."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What the plans of a group cost, as counted while they ran."""

    rounds: int
    elements_sent: tuple[int, ...]
    """For each rank."""


def simulate(
    plans: Sequence[Plan],
    buffers: Sequence[Array],
    op: ReduceOp = ReduceOp.SUM,
    dtype: DType = DType.F32,
    targets: Sequence[Array] | None = None,
) -> Counts:
    """Carry out ``plans[r]`` on ``buffers[r]`` for every rank, and count what it took.

    Without ``targets`` the plans work in place. PlanError if ranks disagree on the number of rounds, if something sent
    is never read or something expected never sent, if lengths differ, or if one message spoils another.
    """
    rounds = {len(plan.rounds) for plan in plans}
    if len(rounds) != 1:
        raise PlanError(f"ranks disagree on the number of rounds: {[len(plan.rounds) for plan in plans]}")
    group = _Group(buffers, buffers if targets is None else targets, op, dtype)
    for index, each in enumerate(zip(*(plan.rounds for plan in plans), strict=True)):
        group.carry_out(index, each)
    return Counts(rounds.pop(), tuple(group.elements_sent))


class _Group:
    """All ranks' buffers between two rounds."""

    def __init__(self, sources: Sequence[Array], targets: Sequence[Array], op: ReduceOp, dtype: DType) -> None:
        self._sources = sources
        self._targets = targets
        self._op = op
        self._dtype = dtype
        self.elements_sent = [0] * len(sources)

    def carry_out(self, index: int, rounds: Sequence[Round]) -> None:
        """Carry out one round of every rank: all messages leave before any arrives."""
        for rank, mine in enumerate(rounds):
            _check_apart(mine, f"round {index}, rank {rank}", in_place=self._sources[rank] is self._targets[rank])
        under_way = self._post(index, rounds)
        for rank, mine in enumerate(rounds):
            arrived = {receive.peer: _take(under_way, index, rank, receive) for receive in mine.receives}
            self._settle(rank, mine, arrived)
        if under_way:
            (sender, peer), elements = under_way.popitem()
            raise PlanError(f"round {index}: rank {peer} never reads the {len(elements)} elements of rank {sender}")

    def _post(self, index: int, rounds: Sequence[Round]) -> dict[tuple[int, int], Array]:
        under_way = {}
        for rank, mine in enumerate(rounds):
            for send in mine.sends:
                elements = self._sources[rank][send.part].copy()
                if len(elements) != length_of(send.part):
                    raise PlanError(
                        f"round {index}, rank {rank}: {send}, but it has {len(self._sources[rank])} elements"
                    )
                under_way[rank, send.peer] = elements
                self.elements_sent[rank] += len(elements)
        return under_way

    def _settle(self, rank: int, mine: Round, arrived: dict[int, Array]) -> None:
        target = self._targets[rank]
        folded = [receive for receive in mine.receives if receive.then is Then.FOLD]
        for receive in mine.receives:
            if receive.then is Then.STORE:
                target[receive.part] = arrived[receive.peer]
        # slices have no hash before Python 3.12, so parts are told apart by comparing
        parts = [receive.part for receive in folded] + ([] if mine.finish is None else [mine.finish])
        for part in (each for position, each in enumerate(parts) if each not in parts[:position]):
            contributions = {receive.peer: arrived[receive.peer] for receive in folded if receive.part == part}
            contributions[rank] = target[part]
            in_order = [contributions[contributor] for contributor in sorted(contributions)]
            self._fold(in_order, target[part], is_complete=part == mine.finish)

    def _fold(self, contributions: Sequence[Array], out: Array, *, is_complete: bool) -> None:
        plain = ReduceOp.SUM if self._op.is_mean else self._op
        accumulated = np.empty(len(out), self._dtype.accumulator.numpy)
        fold(plain, self._dtype.accumulator, [widen(self._dtype, each) for each in contributions], accumulated)
        finish(self._op if is_complete else plain, self._dtype, accumulated, len(self._sources), out)


def _take(under_way: dict[tuple[int, int], Array], index: int, rank: int, receive: Receive) -> Array:
    elements = under_way.pop((receive.peer, rank), None)
    if elements is None:
        raise PlanError(f"round {index}, rank {rank}: {receive}, which never sends it")
    if len(elements) != length_of(receive.part):
        raise PlanError(f"round {index}, rank {rank}: {receive}, which sends {len(elements)} elements")
    return elements


def _check_apart(mine: Round, where: str, *, in_place: bool) -> None:
    """Raise PlanError if the outcome of a round depends on which message comes first."""
    for one, other in combinations(mine.receives, 2):
        is_fold = one.then is other.then is Then.FOLD and one.part == other.part
        if _overlap(one.part, other.part) and not is_fold:
            raise PlanError(f"{where}: {one} spoils {other}")
    for receive in mine.receives:
        if in_place and receive.then is Then.STORE:
            for send in mine.sends:
                if _overlap(send.part, receive.part):
                    raise PlanError(f"{where}: {receive} spoils {send}")


def _overlap(one: slice, other: slice) -> bool:
    is_shared: bool = max(one.start, other.start) < min(one.stop, other.stop)
    return is_shared

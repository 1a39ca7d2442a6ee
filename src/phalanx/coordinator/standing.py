"""The state of the run and of every worker, for ``phalanx status``."""

from collections.abc import Mapping

from phalanx.coordinator.epochs import Epochs
from phalanx.coordinator.roster import Roster
from phalanx.coordinator.steps import Steps
from phalanx.coordinator.worker import Worker, lane_bounds
from phalanx.wire import Standing, Status, Waiting


def describe(
    epochs: Epochs, roster: Roster, steps: Steps, *, ended: str | None, waits: Mapping[int, Waiting], now: float
) -> Status:
    """Return the state of every worker: members by rank, then workers that wait to be admitted."""
    done = steps.dones
    has_lanes = epochs.is_whole and not epochs.is_plain  # in a revoked epoch nobody has lanes

    def stand(worker: Worker) -> Standing:
        rank = worker.rank
        is_in = roster.is_member(worker)
        waiting = waits.get(rank) if is_in else None
        waits_for = waiting.ranks if waiting else ()
        if rank in done and not waits_for:
            waits_for = tuple(other for other in roster.members if other not in done)
        return Standing(
            rank=rank if is_in else None,
            name=worker.hello.name,
            host=worker.hello.host,
            pid=worker.hello.pid,
            device=worker.hello.device,
            threads=worker.hello.threads,
            lanes=lane_bounds(epochs.lanes, len(roster.members), rank) if is_in and has_lanes else None,
            silent_s=max(0.0, now - worker.heard_at),
            is_done=is_in and rank in done,
            waits_for=waits_for,
            doing=waiting.words if waiting else "",
        )

    workers = sorted(roster.present, key=lambda each: (not roster.is_member(each), each.rank))
    words = _state(epochs, roster, steps.step, ended)
    return Status(epoch=epochs.number, step=steps.step, words=words, workers=tuple(stand(each) for each in workers))


def _state(epochs: Epochs, roster: Roster, step: int, ended: str | None) -> str:
    if ended is not None:
        return f"over: {ended}"
    if epochs.is_whole:
        return "a group is at work" if epochs.is_plain else f"at step {step}"
    return f"waiting for workers: {len(roster.present)} here, at least {roster.least or '?'} needed"

"""The points at which a worker of a test can kill itself. The real code around a point runs up to it."""

import os
import signal

from phalanx.collectives.lanes import LaneReduction
from phalanx.parallel.engine import elastic_member, transfer
from phalanx.parallel.optimizer import Arrival
from phalanx.parallel.reduction.bucket_exchange import BucketExchange

STEP = 8
"""The step in which a worker dies, if it dies in a step."""


def _die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def _wrap(owner, name, is_time, *, before=lambda *_: None, after=lambda *_: None):
    """Replace a function of this process: it calls ``before`` and ``after`` when ``is_time(*arguments)``."""
    act = getattr(owner, name)

    def wrapped(*arguments, **options):
        is_now = is_time(*arguments)
        if is_now:
            before(*arguments)
        result = act(*arguments, **options)
        if is_now:
            after(*arguments)
        return result

    setattr(owner, name, wrapped)


def _die_before(owner, name, is_time):
    _wrap(owner, name, is_time, before=_die)


def _die_after(owner, name, is_time):
    _wrap(owner, name, is_time, after=_die)


def _at_step(engine, step):
    return lambda *_: engine.step_number == step


def _at_bucket(engine, wanted):
    """Whether the bucket with this number leaves now. Those before it are then with all ranks."""

    def is_time(bucket):
        is_now = engine.step_number == STEP and bucket._number == wanted
        if is_now:
            for pending in engine._exchange.reducer._pending:
                pending.wait()
        return is_now

    return is_time


def _update_half_and_die(engine):
    """Have the optimizer update half of its leaves, and then die."""

    def halve(*_):
        for group in engine.optimizer.param_groups:
            group["params"] = group["params"][: len(group["params"]) // 2]

    _wrap(engine.optimizer, "step", _at_step(engine, STEP), before=halve, after=_die)


def _on_entering(engine):
    """Whether the engine enters an epoch that is not the first of the run."""
    return lambda *_: engine.step_number > 0 and not engine._member._is_in


def _as_first_of_three(engine):
    """Whether this is rank 0 of three members, and has kept sums of a step that another one's death has interrupted."""
    return lambda *_: engine._progress.pieces and (engine._run.group.rank, engine._run.group.size) == (0, 3)


def _on_way(*, is_leaving, transfers):
    """Whether tensors are on their way from this worker, or to it, for the first time or a later one."""
    left = transfers

    def is_time(moving):
        nonlocal left
        left -= any((each.data is None) == is_leaving for each in moving)
        return left == 0

    return is_time


POINTS = {
    "before-first-bucket": lambda engine: _die_before(BucketExchange, "leave", _at_bucket(engine, 0)),
    "between-buckets": lambda engine: _die_before(BucketExchange, "leave", _at_bucket(engine, 1)),
    "in-fold": lambda engine: _die_after(LaneReduction, "_add_up_block", _at_step(engine, STEP)),
    "before-done": lambda engine: _die_before(engine._run._client, "done", _at_step(engine, STEP)),
    "after-done": lambda engine: _die_after(engine._run._client, "done", _at_step(engine, STEP)),
    "after-commit": lambda engine: _die_before(engine._exact_step, "update", _at_step(engine, STEP)),
    "in-optimizer": _update_half_and_die,
    "before-all-gather": lambda engine: _die_before(engine._exchange, "spread_weights", _at_step(engine, STEP + 1)),
    "in-all-gather": lambda engine: _die_before(Arrival, "wait", _at_step(engine, STEP + 1)),
    "sending-weights": lambda _: _die_before(transfer, "_finish", _on_way(is_leaving=True, transfers=1)),
    "sending-state": lambda _: _die_before(transfer, "_finish", _on_way(is_leaving=True, transfers=2)),
    "before-sending-state": lambda _: _die_before(elastic_member, "hand_over", lambda _, outgoing, __: outgoing),
    "receiving-weights": lambda _: _die_before(transfer, "_finish", _on_way(is_leaving=False, transfers=1)),
    "receiving-state": lambda _: _die_before(transfer, "_finish", _on_way(is_leaving=False, transfers=2)),
    "before-receiving-state": lambda _: _die_before(elastic_member, "hand_over", lambda _, __, incoming: incoming),
    "comparison": lambda engine: _die_before(engine._member._guard, "compare", _on_entering(engine)),
    "comparison-again": lambda engine: _die_before(engine._guard, "compare", _as_first_of_three(engine)),
    "dropping": lambda engine: _die_before(engine._replica, "keep_shard", _on_entering(engine)),
}
"""How to have this worker die at each point."""

"""A replica in checkpoints: weights, buffers, optimizer state, the next step, and the user's own state."""

from pathlib import Path

import numpy as np
import torch

from phalanx.checkpoint import Checkpoint, find_checkpoints, is_checkpoint, load, save_on_first, save_together
from phalanx.errors import ConfigError
from phalanx.group import ElasticRun
from phalanx.parallel.engine.extra import decode_extra, encode_extra
from phalanx.parallel.engine.replica import Replica
from phalanx.parallel.reduction import Exchange
from phalanx.wire import odd_one_out

_EXTRA = "extra"  # the set with the user's own state, and the one tensor in it


def save_replica(replica: Replica, folder: Path, members: Exchange) -> bytes:
    """Write a checkpoint into a folder, and return b"", or the words of the error. All ranks call this.

    An error is a result, too: a member that missed it because its epoch ended is told, and does not write alone.
    """
    state = replica.state()
    extra = torch.frombuffer(bytearray(encode_extra(replica.extra)), dtype=torch.uint8)
    files = {"model": state["model"], _EXTRA: {_EXTRA: extra}}
    try:
        if replica.shard[1] > 1:
            save_together(folder, Checkpoint(replica.step, files, {}), state["optimizer"], members)
        else:
            save_on_first(folder, Checkpoint(replica.step, {**files, "optimizer": state["optimizer"]}, {}), members)
    except ConfigError as error:
        return str(error).encode()
    return b""


def read_latest(path: Path) -> Checkpoint | None:
    """Return the checkpoint at a path, or the latest in a folder. None if the folder has none."""
    found = path if is_checkpoint(path) else next(reversed(find_checkpoints(path).values()), None)
    if found is None:
        return None
    try:
        checkpoint = load(found)
    except ConfigError as error:
        raise ConfigError(f"{error}; remove it, or load another one by its path") from error
    if not {"model", "optimizer"} <= checkpoint.files.keys():
        raise ConfigError(f"checkpoint {found} has {' and '.join(sorted(checkpoint.files))}: an engine did not save it")
    return checkpoint


def check_joined(run: ElasticRun, replica: Replica, found: Checkpoint | None) -> None:
    """Raise ConfigError if a run counts on this worker for a step, and it would load another one."""
    step = found.step if found else 0
    if replica.report:
        raise ConfigError("a run that has begun has its state already: load before the first step")
    if run.is_known_to_hold == run.step != step:
        raise ConfigError(
            f"this worker joined at step {run.step}, and would load step {step}: join with "
            "phalanx.join_run(step=latest_step(folder)), from phalanx.checkpoint"
        )


def check_alike(members: Exchange, found: Checkpoint | None) -> None:
    """Raise ConfigError on all ranks if they would load different steps."""
    steps = np.zeros(members.size)
    steps[members.rank] = found.step if found else 0
    members.all_reduce(steps)
    loaded = dict(enumerate(steps.astype(int).tolist()))
    if odd := odd_one_out(loaded):
        rank, other = odd
        raise ConfigError(
            f"rank {rank} would load step {loaded[rank]}, and rank {other} step {loaded[other]}: all ranks must see "
            "one folder"
        )


def load_replica(replica: Replica, checkpoint: Checkpoint) -> None:
    """Set a replica to what is in a checkpoint. If that is of another model, a ConfigError says how it differs."""
    packed = checkpoint.files.get(_EXTRA, {}).get(_EXTRA)
    extra = decode_extra(packed.numpy().tobytes()) if packed is not None else {}
    try:
        replica.load(checkpoint.files, checkpoint.step)
    except RuntimeError as error:  # by which torch says that names or shapes differ
        raise ConfigError(f"the checkpoint of step {checkpoint.step} is of another model: {error}") from error
    replica.replace_extra(extra)

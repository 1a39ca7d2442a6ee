"""One rank of ``phalanx bench zero`` with one system alone: takes a few steps and measures their memory."""

from pathlib import Path

import msgspec
import numpy as np
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

import phalanx
from phalanx.bench.training.driver import Training, make_config
from phalanx.bench.training.worker import answer, gloo, make_batch, plain_loop, read_command
from phalanx.bench.training.zero import Memory, ZeroSystem
from phalanx.bench.training.zero_worker import prepare
from phalanx.group import Group
from phalanx.parallel import ZeroOptimizer

_STEPS = 3  # the first makes the state; from the second on, state and activations are there together


def main() -> None:
    """Measure what the command line asks for."""
    torch.set_num_threads(1)
    training, folder = read_command(Training)
    (name,) = training.systems
    system = ZeroSystem(name)
    with phalanx.connect() as group, gloo(group, folder, is_wanted=system is ZeroSystem.TORCH_ZERO):
        answer(_measure(system, group, training), group, folder)


def _measure(system: ZeroSystem, group: Group, training: Training) -> Memory:
    """Return the most memory that any rank needs beyond what it had before the model was made."""
    small = msgspec.structs.replace(make_config(64), layers=1)
    first = plain_loop(*prepare(system, group, small, is_fused=training.is_fused))
    first(make_batch(0, group, training))  # so that torch has imported what it imports at first use
    before_bytes = _resident_bytes("VmRSS")
    model, optimizer = prepare(system, group, make_config(training.width), is_fused=training.is_fused)
    step = plain_loop(model, optimizer)
    for number in range(_STEPS):
        step(make_batch(number, group, training))
    needed = np.array([_state_bytes(optimizer), _resident_bytes("VmHWM") - before_bytes])
    state_bytes, peak_bytes = group.all_gather(needed).max(axis=0).tolist()
    return Memory(state_bytes, peak_bytes)


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of the optimizer state on this rank."""
    if isinstance(optimizer, ZeroOptimizer):
        return optimizer.state_bytes()
    kept = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
    return sum(value.nbytes for each in kept.state.values() for value in each.values() if torch.is_tensor(value))


def _resident_bytes(field: str) -> int:
    """Return the resident memory of this process: now (VmRSS) or at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields[field].removesuffix("kB")) * 1024


if __name__ == "__main__":
    main()

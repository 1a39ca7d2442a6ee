"""One rank of ``phalanx bench checkpoint``: takes steps, saves checkpoints in every way in turn, and times both."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

import phalanx
from phalanx.bench.training.checkpoint import MODELS, Saving, SavingTask, Window, Windows
from phalanx.bench.training.worker import VOCABULARY, answer, make_model, read_command
from phalanx.group import Group
from phalanx.parallel import Engine
from phalanx.train.background import BackgroundSaves, State
from phalanx.train.checkpoint import Checkpoint, Pace, prune, save
from phalanx.train.model import loss
from phalanx.train.shapes import count_parameters

_WARMUP = 2
_STEPS = 5


def main() -> None:
    """Measure what the command line asks for."""
    torch.set_num_threads(1)
    task, folder = read_command(SavingTask)
    with phalanx.connect(lanes=task.ranks) as group:
        bench = _Bench(task, group, folder / "checkpoints")
        rounds = [{saving.value: bench.measure(saving) for saving in Saving} for _ in range(_WARMUP + task.rounds)]
        bench.saves.close()
        windows = {saving.value: [each[saving.value] for each in rounds[_WARMUP:]] for saving in Saving}
        answer(Windows(count_parameters(MODELS[task.model], VOCABULARY), windows), group, folder)


class _Bench:
    """A model in training, and its checkpoints, which rank 0 saves. The times are those of rank 0."""

    def __init__(self, task: SavingTask, group: Group, folder: Path) -> None:
        self._rank = group.rank
        self._folder = folder
        self._engine = Engine(make_model(MODELS[task.model]), loss, torch.optim.AdamW, group, lr=1e-3, fused=True)
        random = torch.Generator().manual_seed(group.rank)
        self._batch = torch.randint(VOCABULARY, (task.batch, task.tokens + 1), generator=random)
        self.saves = BackgroundSaves()

    def measure(self, saving: Saving) -> Window:
        """Save a checkpoint, and take steps until it is written. Take a step before, so that all ranks begin alike."""
        self._step()
        began = time.perf_counter()
        if self._rank == 0 and saving is Saving.FOREGROUND:
            self._write(self._engine.step_number)(self._engine.state(), lambda: None)
        if self._rank == 0 and saving is Saving.BACKGROUND:
            self.saves.begin(self._engine.state(), self._write(self._engine.step_number))
        pause_s = time.perf_counter() - began
        steps_s: list[float] = []
        least = _STEPS if saving is Saving.NONE else 1
        while True:
            is_enough = self._rank == 0 and len(steps_s) >= least and not self.saves.is_busy
            began = time.perf_counter()
            if self._step(wants_stop=is_enough):
                self.saves.wait()
                return Window(pause_s, steps_s)
            steps_s.append(time.perf_counter() - began)

    def _step(self, *, wants_stop: bool = False) -> bool:
        """Take a step, and return whether rank 0 wants it to be the last."""
        return self._engine.step(lambda _: [self._batch], wants_stop=wants_stop).wants_stop

    def _write(self, step: int) -> Callable[[State, Pace], None]:
        def write(state: State, pace: Pace) -> None:
            save(self._folder, Checkpoint(step, state, {}), pace=pace)
            prune(self._folder, 1)

        return write


if __name__ == "__main__":
    main()

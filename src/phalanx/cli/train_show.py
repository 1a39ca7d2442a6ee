"""What ``phalanx train`` prints: the beginning, the progress and the result of a run."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from phalanx.train.config import Config, EngineChoice
from phalanx.train.data import Corpus
from phalanx.train.record import StepRecord
from phalanx.train.rundir import RunDir

_LOOK_S = 0.1
_LINES = 20  # without a terminal, for a whole run
_SMOOTH = 0.9  # weight of the past in the speed that is shown
_decoder: msgspec.json.Decoder[StepRecord] = msgspec.json.Decoder(StepRecord)


def show_beginning(run: RunDir, config: Config, corpus: Corpus, start: int | None) -> None:
    """Print the data, the model and the directory of the run."""
    train, number = config.train, config.run.workers
    workers = f"{number} worker{'s' if number > 1 else ''}"
    goal = f"steps {start + 1} to {train.steps}" if start else f"{train.steps} steps"
    goal = f"all {train.steps} steps taken" if start == train.steps else goal
    print(f"data   {corpus.describe()}")
    blocks = f"{config.model.layers} block{'s' if config.model.layers > 1 else ''}"
    print(f"model  {blocks} of width {config.model.width}, {goal} of {train.batch} sequences")
    sharing = ", which share the optimizer" if config.run.zero and number > 1 else ""
    over = " over torch.distributed" if config.run.engine is EngineChoice.TORCH else ""
    print(f"run    {run.path}, {workers}{sharing}{over}, {train.lanes} lanes", flush=True)


def show_end(run: RunDir, config: Config, start: int | None, *, as_json: bool) -> bool:
    """Print the result of the run and what to do next. Return whether all its steps were taken."""
    result = run.read_result()
    is_complete = result.steps >= config.train.steps
    if as_json:
        names = ("steps", "loss", "eval_loss", "digest", "tokens_per_s", "workers")
        print(
            msgspec.json.encode({name: getattr(result, name) for name in names} | {"run_dir": str(run.path)}).decode()
        )
        return is_complete
    entropy, loss = result.unigram_entropy, result.eval_loss
    steps = f"{result.steps} step{'s' if result.steps > 1 else ''}"
    steps += f", {result.steps - start} of them" if start else ""
    print(f"\n{steps} in {result.seconds:.0f} s, {result.tokens_per_s:,.0f} tokens/s")
    held_out = "not finite" if loss is None else f"{loss:.3f} nats a token"
    print(f"loss   {held_out} on held-out text; knowing only how often each token occurs gives {entropy:.3f}")
    print(f"digest {result.digest[:16]}, the same for any number of workers")
    if not is_complete:
        print(f"\nstopped early; continue with: phalanx train --resume {run.path}")
        return False
    if run.sample.exists():
        print(f"\nThe model writes:\n\n{_indent(run.sample)}\n")
    print(f"more text:  phalanx generate {run.path} --prompt 'class '")
    print(f"a picture:  phalanx plot {run.path}")
    return True


def show_failure(run: RunDir) -> None:
    """Print how to continue after a failure."""
    if not run.path.exists():
        print("phalanx train: the directory of the run is gone: start again", file=sys.stderr)
    elif any(run.checkpoints.glob("step-*")):
        print(f"phalanx train: resume from the last checkpoint with --resume {run.path}", file=sys.stderr)
    else:
        print(
            f"phalanx train: there is no checkpoint to resume from: remove {run.path}, and start again", file=sys.stderr
        )


class Display:
    """Shows the progress of a run from its log: a bar on a terminal, otherwise a line now and then."""

    def __init__(self, run: RunDir, config: Config, start: int, *, is_silent: bool) -> None:
        self._path = run.steps
        self._steps = config.train.steps
        self._start = start
        self._is_silent = is_silent
        self._read_bytes = run.steps.stat().st_size if run.steps.exists() else 0  # written before the run was resumed
        self._tokens_per_s = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="phalanx-display")

    def __enter__(self) -> Self:
        if not self._is_silent:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if not self._is_silent:
            self._thread.join()

    def _watch(self) -> None:
        console = Console()
        if console.is_terminal and not console.is_dumb_terminal:
            self._draw(console)
            return
        every = -(-self._steps // _LINES)
        for record in self._follow():
            if record.eval_loss is not None or (record.step + 1) % every == 0:
                held_out = "" if record.eval_loss is None else f", {record.eval_loss:.4f} held out"
                words = f"step {record.step + 1:>{len(str(self._steps))}}  loss {record.loss:.4f}{held_out}"
                print(f"{words}, {self._tokens_per_s:,.0f} tokens/s", flush=True)

    def _draw(self, console: Console) -> None:
        columns = MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn()
        with Progress(TextColumn("step"), *columns, console=console, transient=True) as progress:
            task = progress.add_task("starting", total=self._steps, completed=self._start)
            for record in self._follow():
                words = f"loss {record.loss:.3f}  {self._tokens_per_s:,.0f} tokens/s"
                progress.update(task, completed=record.step + 1, description=words)

    def _follow(self) -> Iterator[StepRecord]:
        """Yield the steps as they are taken, until the run is over."""
        is_over = False
        while not is_over:
            is_over = self._is_over.wait(_LOOK_S)
            for record in self._read():
                speed = record.tokens / record.seconds
                self._tokens_per_s = (
                    _SMOOTH * self._tokens_per_s + (1 - _SMOOTH) * speed if self._tokens_per_s else speed
                )
                yield record

    def _read(self) -> list[StepRecord]:
        """Return what was added to the log since the last look."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            whole, _, _ = file.read().rpartition(b"\n")
        if not whole:
            return []
        self._read_bytes += len(whole) + 1
        return [_decoder.decode(line) for line in whole.split(b"\n")]


def _indent(path: Path) -> str:
    text = path.read_bytes().decode(errors="replace")
    shown = "".join(letter if letter.isprintable() or letter == "\n" else "·" for letter in text)
    return "\n".join(f"    {line}" for line in shown.splitlines())

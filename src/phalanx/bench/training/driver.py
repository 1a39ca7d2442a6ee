"""Starts workers that train for a benchmark, and collects what they measured."""

import importlib.metadata
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from phalanx.errors import ConfigError
from phalanx.launch import local
from phalanx.train import require_torch
from phalanx.train.config import ModelConfig
from phalanx.transport import usable_cpus

ANSWER = "answer"

_Answer = TypeVar("_Answer", bound=msgspec.Struct)


class Training(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tells workers to take ``rounds`` steps in each system, on ``batch`` sequences of ``tokens`` tokens each."""

    systems: tuple[str, ...]
    ranks: int
    rounds: int
    tokens: int
    batch: int
    width: int
    is_fused: bool

    def __post_init__(self) -> None:
        make_config(self.width)

    def describe(self, parameters: int) -> str:
        """Return a title for a table of such steps."""
        return f"training step, {parameters / 1e6:.1f} M parameters, {self.batch} x {self.tokens} tokens a worker"


class Turns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The workers' answer: the seconds of the slowest rank for every step of each system, and the model's size."""

    parameters: int
    seconds: dict[str, list[float]]


def make_config(width: int) -> ModelConfig:
    """Return a transformer of six blocks with heads of width 64. With width 384 it has about 11 M parameters."""
    if width < 64 or width % 64:
        raise ConfigError(f"the model's width is a multiple of 64, not {width}")
    return ModelConfig(layers=6, width=width, heads=width // 64, kv_heads=width // 64, hidden=width * 8 // 3)


def drive(
    module: str,
    task: msgspec.Struct,
    workers: int,
    answer: type[_Answer],
    run: Callable[[local.Program], int] = local.run,
) -> _Answer:
    """Return what rank 0 answers after all workers have run ``module``; ``run`` starts them and waits for their end."""
    require_torch()
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        program = local.Program(
            name=module,
            arguments=(msgspec.json.encode(task).decode(), folder),
            is_module=True,
            workers=workers,
            stop_signal=signal.SIGTERM,  # SIGINT would print tracebacks while workers import
        )
        status = run(program)
        out = Path(folder) / ANSWER
        if status or not out.exists():
            raise SystemExit(status or 1)  # the launcher has printed why
        return msgspec.json.decode(out.read_bytes(), type=answer)


def describe_machine(ranks: int) -> str:
    """Return a line about the machine and the libraries."""
    return f"{ranks} workers of one thread on {usable_cpus()} cores, torch {importlib.metadata.version('torch')}"

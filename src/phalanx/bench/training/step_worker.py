"""One rank of ``phalanx bench step``: takes the same steps in every system in turn, and times them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import phalanx
from phalanx.bench.training.driver import Training, make_config
from phalanx.bench.training.step import StepSystem
from phalanx.bench.training.worker import Step, answer, gloo, make_model, plain_loop, read_command, take_turns
from phalanx.group import ElasticRun, Group
from phalanx.launch.connect import enter_run
from phalanx.launch.env import LOOPBACK, Launch
from phalanx.launch.running_coordinator import RunningCoordinator
from phalanx.parallel import DataParallel, Engine, Report, TorchExchange
from phalanx.telemetry import OFF, BatchFile, Recorder, RecordWriter
from phalanx.train.model import loss
from phalanx.transport import Credentials, format_address, make_token, parse_address
from phalanx.wire import Address

_LIMIT_S = 300.0


def main() -> None:
    """Measure what the command line asks for."""
    torch.set_num_threads(1)
    training, folder = read_command(Training)
    is_gloo_wanted = bool({StepSystem.DDP_GLOO.value, StepSystem.ENGINE_GLOO.value} & set(training.systems))
    with (
        phalanx.connect(lanes=training.ranks) as group,
        gloo(group, folder, is_wanted=is_gloo_wanted),
        ExitStack() as stack,
    ):
        run = None
        if StepSystem.ENGINE_ELASTIC.value in training.systems:
            run = stack.enter_context(_elastic_run(group, folder))
        turns = take_turns(lambda name: _prepare(StepSystem(name), group, training, folder, run), group, training)
        answer(turns, group, folder)


@contextmanager
def _elastic_run(group: Group, folder: Path) -> Iterator[ElasticRun]:
    """Join a run of the same ranks. Rank 0 starts its coordinator as ``phalanx train`` does."""
    with ExitStack() as stack:
        told = ("", make_token())
        if group.rank == 0:
            options = ["--workers", f"{group.size}", "--journal", str(folder / "journal")]
            options += ["--events", str(folder / "events.jsonl")]
            log, bind = folder / "coordinator.log", Address(LOOPBACK, 0)
            coordinator = RunningCoordinator(bind, options, Credentials(told[1].encode()), log)
            told = (format_address(stack.enter_context(coordinator).address), told[1])
        address, token = group.broadcast_object(told)
        launch = Launch.joining(parse_address(address), Credentials(token.encode()), (None, None))
        yield stack.enter_context(enter_run(launch, lanes=group.size, timeout_s=_LIMIT_S))
        group.barrier()  # the coordinator stays until all have taken their steps


class _UnguardedEngine(Engine):
    """An engine whose steps have no digest, guard or vote, for comparison."""

    def _step(
        self,
        batches: Callable[[int], Sequence[torch.Tensor]],
        samples: Callable[[int], tuple[int, ...]],  # noqa: ARG002 - as Engine has it
        *,
        wants_stop: bool,
        wants_leave: bool,  # noqa: ARG002 - as Engine has it
    ) -> Report:
        self._exact_step.compute(batches)
        norm = self._exchange.reducer.finish().norm
        loss = self._exchange.values.loss(self._exchange.reducer.counts)
        self._exact_step.update()
        report = Report(self.step_number, loss, norm, b"", wants_stop, 0.0, 0.0, 0.0, 0.0)
        self._replica.conclude(report, b"", is_whole=True)
        self._progress.clear()
        return report


def _prepare(system: StepSystem, group: Group, training: Training, folder: Path, run: ElasticRun | None) -> Step:
    """Return a step of this system with its own model and optimizer, which start equal in all systems."""
    model = make_model(make_config(training.width))
    make_optimizer = partial(torch.optim.AdamW, lr=1e-3, fused=training.is_fused)
    if system.is_engine:
        exchange = _choose_exchange(system, group, training, run)
        records = RecordWriter(OFF, lambda _: None)
        if system is StepSystem.ENGINE_TELEMETRY:
            recorder = Recorder()
            records = RecordWriter(recorder, BatchFile(folder / "telemetry", recorder.worker).append)
        make = _UnguardedEngine if system is StepSystem.ENGINE_UNGUARDED else Engine
        engine = make(
            model,
            loss,
            lambda leaves: make_optimizer([leaf.block for leaf in leaves]),
            exchange,
            recorder=records.recorder,
        )
        return partial(_take_engine_step, engine, group, records)
    match system:
        case StepSystem.DATA_PARALLEL:
            model = DataParallel(model, group)
        case StepSystem.DDP_GLOO:
            model = DistributedDataParallel(model)
        case StepSystem.NO_EXCHANGE:
            pass
    return plain_loop(model, make_optimizer(model.parameters()))


def _choose_exchange(
    system: StepSystem, group: Group, training: Training, run: ElasticRun | None
) -> Group | TorchExchange | ElasticRun:
    if system is StepSystem.ENGINE_GLOO:
        return TorchExchange(lanes=training.ranks)
    if system is StepSystem.ENGINE_ELASTIC:
        assert run, "it was made for this system"
        return run
    return group


def _take_engine_step(engine: Engine, group: Group, records: RecordWriter, batch: torch.Tensor) -> None:
    """Take a step as ``phalanx train`` does. All engines share the group, so each one says where it records."""
    group.record_to(records.recorder)
    engine.step(lambda _: [batch])
    records.flush()


if __name__ == "__main__":
    main()

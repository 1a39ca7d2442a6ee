"""The training loop of one worker. All workers run the same loop."""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch

from phalanx.buffers import even_part
from phalanx.data import samples_of
from phalanx.errors import ConfigError, ConnectError, Halted, RemoteError, WeightsDiverged
from phalanx.group import ElasticRun
from phalanx.parallel import Engine, Exchange, Leaf, Report
from phalanx.telemetry import OFF, Activity, Recorder
from phalanx.train.checkpoint import Checkpoint
from phalanx.train.config import Config, Device
from phalanx.train.data import Corpus
from phalanx.train.keeper import Keeper
from phalanx.train.model import Transformer, loss
from phalanx.train.parts import list_parts
from phalanx.train.profiling import StepProfiler
from phalanx.train.record import StepRecord, float_bits
from phalanx.train.schedule import learning_rate


def make_model(config: Config, vocabulary: int, device: torch.device) -> Transformer:
    """Return the model with its initial weights, which depend on the seed."""
    torch.manual_seed(config.train.seed)
    model = Transformer(config.model, vocabulary)
    model.to(device)
    return model


def make_loss(
    config: Config, device: torch.device
) -> Callable[[torch.nn.Module, torch.Tensor], tuple[torch.Tensor, int]]:
    """Return a function that computes the total loss of a batch and its number of sequences."""

    def compute(model: torch.nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
        with torch.autocast(device.type, torch.bfloat16, enabled=config.train.autocast):
            return loss(model, batch) * len(batch), len(batch)

    return compute


def choose_device(device: Device, gpu: int | None = None, local_rank: int = 0) -> torch.device:
    """Return the torch device, or raise ConfigError if it is not there.

    Workers of a machine, which have ``local_rank`` there, take turns among its GPUs, unless ``gpu`` is the one to use.
    """
    has_gpu = torch.cuda.is_available()
    if (device is Device.CUDA or gpu is not None) and not has_gpu:
        raise ConfigError("torch finds no GPU here: pass --device cpu")
    if not has_gpu or device is Device.CPU:
        return torch.device("cpu")
    return torch.device("cuda", choose_gpu(gpu, local_rank, torch.cuda.device_count()))


def choose_gpu(wanted: int | None, local_rank: int, count: int) -> int:
    """Return the number of a worker's GPU, of ``count``: the one that is wanted, or else that of its turn."""
    if wanted is not None and wanted >= count:
        raise ConfigError(f"there is no GPU {wanted} here: pass --device cuda:0 to cuda:{count - 1}")
    return local_rank % count if wanted is None else wanted


@dataclass(frozen=True, slots=True)
class LaneBatches:
    """The sequences of every lane of every step, as batches on ``device``. They depend on the config alone."""

    config: Config
    corpus: Corpus
    device: torch.device

    def samples(self, step: int, lane: int) -> tuple[int, ...]:
        """Return the numbers of a lane's sequences."""
        train = self.config.train
        length = len(self.corpus.train)
        return samples_of(step, lane, lanes=train.lanes, batch=train.batch, length=length, seed=train.seed)

    def batches(self, step: int, lane: int) -> list[torch.Tensor]:
        """Return a lane's sequences, cut into micro-batches. Those of its next step begin to come from the disk."""
        rows = torch.from_numpy(self.corpus.train.batch(self.samples(step, lane))).to(self.device)
        self.corpus.train.read_ahead(lambda: self.samples(step + 1, lane))
        return list(rows.chunk(self.config.train.accumulate))

    def held_out(self, lane: int) -> list[torch.Tensor]:
        """Return a lane's part of the evaluation, which uses the first held-out sequences."""
        train = self.config.train
        wanted = min(train.eval_batches * train.batch, len(self.corpus.held_out))
        part = even_part(wanted, train.lanes, lane)
        rows = torch.from_numpy(self.corpus.held_out.batch(range(part.start, part.stop))).to(self.device)
        return list(rows.split(train.batch // train.lanes)) if len(rows) else []


class Trainer:
    """One worker of a run. ``start`` is the checkpoint to resume from."""

    def __init__(
        self,
        config: Config,
        corpus: Corpus,
        exchange: Exchange | ElasticRun,
        device: torch.device,
        start: Checkpoint | None = None,
        recorder: Recorder = OFF,
        profiler: StepProfiler | None = None,
    ) -> None:
        self._config = config
        self._recorder = recorder
        self._profiler = profiler
        self._exchange = exchange
        model = make_model(config, corpus.vocabulary, device)
        self.lanes = LaneBatches(config, corpus, device)
        self.engine = Engine(
            model,
            make_loss(config, device),
            self._make_optimizer,
            exchange,
            seed=config.train.seed,
            clip=config.train.clip,
            buckets=[part.names for part in list_parts(model)],
            zero=config.run.zero,
            schedule=self._rate,
            paranoid=config.run.paranoid,
            recorder=recorder,
        )
        if start:
            self.engine.load_state(start.files, start.step)

    @property
    def exchange(self) -> Exchange:
        """The ranks that train together now."""
        return self._exchange.group if isinstance(self._exchange, ElasticRun) else self._exchange

    def run(
        self,
        keeper: Keeper,
        wants_stop: Callable[[], bool] = lambda: False,
        wants_leave: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Take the remaining steps, and return whether the run came to its end.

        That is so when all steps were taken, or somebody asked all to stop. If this worker ``wants_leave``, the others
        go on without it.
        """
        saved = self.engine.step_number  # a run that resumes begins at a checkpoint
        is_last = self.engine.step_number == self._config.train.steps
        try:
            for record, is_last in self._steps(wants_stop, wants_leave):
                began_ns = time.monotonic_ns()
                if keeper.keep(record, self.engine, is_last=is_last):
                    self._recorder.record(Activity.CHECKPOINT, began_ns)
                    saved = self.engine.step_number
            if is_last:
                self.engine.together(lambda: keeper.conclude(self.engine))
                if isinstance(self._exchange, ElasticRun):
                    self._exchange.conclude()
        except WeightsDiverged as error:
            raise _name_checkpoint(error, saved) from error
        except ConfigError as error:  # for example a full disk: the others cannot continue without this rank
            words = f"rank {self.exchange.rank} stopped at step {self.engine.step_number}: {error}"
            with suppress(Halted):  # all ranks have halted already
                self.exchange.halt(RemoteError(words, step=self.engine.step_number, rank=self.exchange.rank))
            raise
        except (ConnectError, Halted) as error:
            if type(error) not in (ConnectError, Halted):
                raise
            told = copy.copy(error)  # the coordinator stays away, or too few workers are left
            told.args = (f"{error}; {keeper.save_before_end(self.engine)}",)
            raise told from error
        finally:
            self.engine.close()
        return is_last

    def _steps(
        self, wants_stop: Callable[[], bool], wants_leave: Callable[[], bool]
    ) -> Iterator[tuple[StepRecord, bool]]:
        """Yield the record of each step, and whether it was the last."""
        train, lanes = self._config.train, self.lanes
        began = time.perf_counter()
        self._prepare_profile()
        for report in self.engine.train(
            lanes.batches, train.steps, samples=lanes.samples, wants_stop=wants_stop, wants_leave=wants_leave
        ):
            is_last = report.wants_stop or report.step + 1 == train.steps
            record = self._record(report, time.perf_counter() - began, is_last=is_last)
            if not self.engine.was_away:  # else the others have kept this step
                yield record, is_last
            self._prepare_profile()
            began = time.perf_counter()

    def _prepare_profile(self) -> None:
        if self._profiler:
            self._profiler.before(self.engine.step_number)

    def _record(self, report: Report, seconds: float, *, is_last: bool) -> StepRecord:
        train = self._config.train
        is_due = is_last or (report.step + 1) % train.eval_every == 0
        return StepRecord(
            step=report.step,
            loss=report.loss,
            loss_bits=float_bits(report.loss),
            norm=report.norm,
            lr=self._rate(report.step),
            digest=report.digest.hex(),
            tokens=train.batch * self._config.data.context,
            workers=self.exchange.size,
            compute_s=report.compute_s,
            exchange_s=report.exchange_s,
            wait_s=report.wait_s,
            seconds=seconds,
            lanes_s=report.lanes_s,
            eval_loss=self.engine.evaluate(self.lanes.held_out) if is_due else None,
        )

    def _rate(self, step: int) -> float:
        train = self._config.train
        return learning_rate(step, peak=train.lr, least=train.min_lr, warmup=train.warmup, steps=train.steps)

    def _make_optimizer(self, leaves: list[Leaf]) -> torch.optim.Optimizer:
        """Return AdamW with weight decay for matrices but not for the weights of norms."""
        train = self._config.train
        decaying = [leaf.block for leaf in leaves if leaf.parameter.ndim > 1]
        others = [leaf.block for leaf in leaves if leaf.parameter.ndim <= 1]
        groups = [{"params": decaying, "weight_decay": train.weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=1.0, betas=(train.beta1, train.beta2), fused=True)  # times the schedule


def _name_checkpoint(error: WeightsDiverged, saved: int) -> WeightsDiverged:
    """Return the error with the last checkpoint added: all ranks were equal when it was saved."""
    where = f"the last checkpoint from before it is that of step {saved}" if saved else "there is no checkpoint yet"
    return WeightsDiverged(f"{error}; {where}", step=error.step, rank=error.rank, parameter=error.parameter)

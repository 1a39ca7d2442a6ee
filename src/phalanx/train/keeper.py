"""Saving a run: its log, its checkpoints and its result.

Rank 0 writes everything, except that ranks that share the optimizer each write their own shard of a checkpoint. Those
that do not see the directory of the run send it to rank 0.
"""

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Self, cast

import msgspec

from phalanx.checkpoint import RemoteShards
from phalanx.errors import ConfigError, EpochChanged, Halted, TransportError
from phalanx.group import ElasticRun, Group
from phalanx.parallel import Engine, Exchange, digest_weights
from phalanx.telemetry import Activity, RecordWriter
from phalanx.train.background import BackgroundSaves, State
from phalanx.train.checkpoint import Best, Checkpoint, Pace, RunFacts, is_saved, prune, save, save_together
from phalanx.train.config import Config
from phalanx.train.data import Corpus
from phalanx.train.fence import Fence
from phalanx.train.log import StepLog
from phalanx.train.model import generate
from phalanx.train.record import Result, StepRecord
from phalanx.train.rundir import RunDir

_SAMPLE_TOKENS = 160
_PROMPT = b"def "
_EXTRA = "recent"
_WAITING = "the run has taken its last step: now it waits for a worker that can write its result"
_LAST_S = 60.0  # for the last checkpoint of workers whose coordinator stays away
_SURE = 3  # the first step that is kept in an epoch may have been committed in an earlier one


class Recent(msgspec.Struct, frozen=True):
    """What every worker remembers, as it may become rank 0: steps that may be in no log, and the best checkpoint.

    ``saved`` is the step of the last checkpoint.
    """

    records: tuple[StepRecord, ...] = ()
    best: Best | None = None
    saved: int = 0

    def after(self, record: StepRecord) -> "Recent":
        """Return what to remember after a step. A worker that has just come may know it already, from the others."""
        known = self.records if self.records and self.records[-1].step >= record.step else (*self.records, record)
        return msgspec.structs.replace(self, records=known)

    def since(self, step: int) -> "Recent":
        """Return what to remember when all steps before ``step`` are in the log."""
        later = tuple(record for record in self.records if record.step >= step)
        return msgspec.structs.replace(self, records=later)


class Keeper:
    """Writes a run into its directory as it proceeds. Every rank has a keeper and makes the same calls.

    Rank 0 writes. When another worker becomes rank 0, it writes what the last one did not come to write. It writes a
    checkpoint while the next steps are taken, except the last one, and those in shards. A worker of another machine
    cannot write into the directory. If it is rank 0, nobody writes until one becomes rank 0 that can. ``home`` says
    where the directory is, if not here, and ``saved`` is the step of the checkpoint that the run began with. Every rank
    writes its own telemetry to ``records``, if there are any.
    """

    def __init__(
        self,
        run: RunDir,
        config: Config,
        corpus: Corpus,
        exchange: Exchange | ElasticRun,
        best: Best | None = None,
        *,
        saved: int = 0,
        home: str = "",
        records: RecordWriter | None = None,
    ) -> None:
        self._run = run
        self._records = records
        self._config = config
        self._corpus = corpus
        self._exchange = exchange
        self._recent = Recent(best=best, saved=saved)
        self._home = home or str(run.path)
        self._fence = Fence(run.fence)
        self._saves = BackgroundSaves()
        self._log: StepLog | None = None
        self._in_epoch = (-1, 0)  # the epoch in which the last step was kept, and how many were kept in it
        self._began = time.perf_counter()
        self._tokens = 0

    def keep(self, record: StepRecord, engine: Engine, *, is_last: bool) -> bool:
        """Log a step, save a checkpoint if the step is the last or a checkpoint is due, and return whether one was.

        Before that, all ranks compare what is in it. So every checkpoint is from before a difference between ranks. If
        an earlier checkpoint could not be written, raise its error.
        """
        if self._records:
            self._records.flush()
        if self._is_writer:
            self._saves.check()
        is_due = is_last or (record.step + 1) % self._config.run.checkpoint_every == 0
        if is_due:
            record = msgspec.structs.replace(record, state_digest=engine.compare().hex())
        if engine.was_away:  # the others have kept this step
            return False
        if known := engine.extra.get(_EXTRA):
            self._recent = msgspec.msgpack.decode(known, type=Recent)
        self._recent = self._recent.after(record)
        if self._is_logged():
            self._recent = self._recent.since(record.step)
        held_out = math.inf if record.eval_loss is None else record.eval_loss
        lowest = self._recent.best.eval_loss if self._recent.best else math.inf
        if is_due and self._is_kept:
            best = Best(record.step + 1, held_out) if held_out < lowest else self._recent.best  # false for NaN
            self._recent = msgspec.structs.replace(self._recent, best=best, saved=record.step + 1)
        engine.extra[_EXTRA] = msgspec.msgpack.encode(self._recent)
        self._tokens += record.tokens
        self._write_log()
        if is_due and not is_last and not self._config.run.zero:
            self._begin_save(engine)
        elif is_due:
            self._save(engine, is_last=is_last)
        return is_due

    def save_before_end(self, engine: Engine) -> str:
        """Save a checkpoint of a run that cannot go on, if that is possible, and return words that name the last one.

        Rank 0 saves alone, unless the ranks share the optimizer: then the members of the last epoch save together.
        """
        if not engine.step_number or not self._is_kept:
            return self._name_last(self._recent.saved)
        if self._config.run.zero:
            return self._save_shards_before_end(engine)
        if not self._is_writer:
            return f"rank 0 saves a checkpoint of it in {self._home} before it ends"
        self._write_log()
        self._save(engine)
        return self._name_last(engine.step_number)

    def _save_shards_before_end(self, engine: Engine) -> str:
        step, last = engine.step_number, self._name_last(self._recent.saved)
        try:
            engine.meet_once_more(_LAST_S)
            if self._is_writer and engine.step_number != step:
                return f"the workers cannot save what they hold: rank 0 has no record of the last step; {last}"
            self._write_log()
            self._save_shards(engine, is_last=False)
        except (TransportError, EpochChanged, Halted) as error:
            return f"the workers cannot save what they hold: {error}; {last}"
        return self._name_last(engine.step_number)

    def _name_last(self, step: int) -> str:
        return f"the last checkpoint is that of step {step}, in {self._home}" if step else "there is no checkpoint yet"

    def conclude(self, engine: Engine) -> None:
        """On rank 0: write the result of the run, and a sample of text from the model."""
        if not self._is_kept:
            raise EpochChanged(_WAITING)
        if not self._is_writer:
            return
        self._write_log()
        self._saves.wait()
        is_missing = not is_saved(self._run.checkpoints, engine.step_number)
        if is_missing and not self._config.run.zero:  # the last rank 0 died before that; shards are saved by all
            self._save(engine)
        last = self._log.last if self._log else None
        if last is None or last.step + 1 != engine.step_number:
            words = f"{self._run.steps} does not end with step {engine.step_number - 1}, which the checkpoint has"
            raise ConfigError(f"{words}: resume from an earlier checkpoint with --from-step")
        seconds = time.perf_counter() - self._began
        result = Result(
            steps=last.step + 1,
            loss=last.loss,
            eval_loss=last.eval_loss,
            digest=digest_weights(list(engine.model.state_dict().items())),
            tokens_per_s=self._tokens / seconds,
            workers=last.workers,
            seconds=seconds,
            unigram_entropy=self._corpus.unigram_entropy(),
        )
        try:
            with self._entering() as may_write:
                if may_write and self._corpus.is_bytes:
                    self._run.sample.write_bytes(self._write_text(engine))
                if may_write:
                    self._run.write_result(result)
        except OSError as error:
            words = f"cannot write the result of the run to {self._run.path}: {error.strerror}"
            raise ConfigError(f"{words}; free some space, then conclude it with --resume {self._run.path}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._is_writer:
                self._saves.wait()
        finally:
            self._saves.close()
            self._close_log()
            self._fence.close()

    @property
    def _members(self) -> Exchange:
        return self._exchange.group if isinstance(self._exchange, ElasticRun) else self._exchange

    @property
    def _epoch(self) -> int:
        return self._exchange.group.epoch if isinstance(self._exchange, ElasticRun) else 0

    @property
    def _is_kept(self) -> bool:
        """Whether rank 0 can write."""
        return self._exchange.is_kept if isinstance(self._exchange, ElasticRun) else True

    @property
    def _is_writer(self) -> bool:
        return self._members.rank == 0 and self._is_kept

    def _is_logged(self) -> bool:
        """Return whether all steps before the one that is kept now are in the log.

        Rank 0 logs all that it remembers before it can be done with the next step. So they are if it can write, and
        this step and the one before it were committed in this epoch.
        """
        epoch, steps = self._in_epoch
        self._in_epoch = (self._epoch, steps + 1 if epoch == self._epoch else 1)
        return self._is_kept and self._in_epoch[1] >= _SURE

    def _close_log(self) -> None:
        if self._log:
            self._log.close()
        self._log = None

    def _write_log(self) -> None:
        """On rank 0: add the steps that the log lacks."""
        if not self._is_writer:
            self._close_log()
            return
        with self._entering() as may_write:
            if not may_write:  # this worker was given up, and will hear of it
                self._close_log()
                return
            self._log = self._log or StepLog(self._run.steps)
            for record in self._recent.records:
                following = self._log.last.step + 1 if self._log.last else record.step
                if record.step > following:
                    words = f"{self._run.steps} lacks steps {following} to {record.step - 1}, which no worker remembers"
                    raise ConfigError(f"{words}: continue from an earlier checkpoint with --resume {self._run.path}")
                if record.step == following:
                    self._log.append(record)

    def _write_text(self, engine: Engine) -> bytes:
        train, data = self._config.train, self._config.data
        prompt = list(_PROMPT)
        written = generate(engine.model, prompt, _SAMPLE_TOKENS, temperature=0.8, seed=train.seed, context=data.context)
        return bytes(prompt + written)

    def _begin_save(self, engine: Engine) -> None:
        """On rank 0: copy the state and start to write the copy."""
        if not self._is_writer:
            return
        step, facts, best = engine.step_number, self._facts(), self._recent.best

        def write(state: State, pace: Pace) -> None:
            began_ns = time.monotonic_ns()
            save(self._run.checkpoints, Checkpoint(step, state, facts), self._entering_as_first, pace)
            self._prune(best)
            if self._records:
                self._records.recorder.record(Activity.CHECKPOINT, began_ns)

        self._saves.begin(engine.state(), write)

    def _save(self, engine: Engine, *, is_last: bool = True) -> None:
        is_first = self._is_writer
        if self._config.run.zero:
            engine.together(lambda: self._save_shards(engine, is_last=is_last))
        elif is_first:
            self._saves.wait()
            now = Checkpoint(engine.step_number, engine.state(), self._facts())
            save(self._run.checkpoints, now, self._entering_as_first)
        if is_first:
            self._prune(self._recent.best)

    def _prune(self, best: Best | None) -> None:
        with self._entering_as_first() as may_write:
            if may_write:
                prune(self._run.checkpoints, self._config.run.keep, best.step if best else None)

    def _save_shards(self, engine: Engine, *, is_last: bool) -> None:
        """Save a checkpoint to which every rank adds its shard. If nobody can write it, only the last is waited for."""
        assert isinstance(self._members, Group), "the config refuses zero with a gradient server"
        if not self._is_kept:
            if is_last:
                raise EpochChanged(_WAITING)
            return
        guests = self._exchange.guests if isinstance(self._exchange, ElasticRun) else ()
        remote = RemoteShards(self._members, guests) if guests else None
        state = engine.state()
        files = {"model": state["model"]} if self._members.rank == 0 else {}
        checkpoint = Checkpoint(engine.step_number, files, self._facts())
        save_together(self._run.checkpoints, checkpoint, state["optimizer"], self._members, remote=remote)

    def _entering(self) -> AbstractContextManager[bool]:
        return self._fence.enter(self._epoch)

    @contextmanager
    def _entering_as_first(self) -> Iterator[bool]:
        """Keep other workers from writing, and yield whether this one may: it must still be rank 0."""
        with self._entering() as may_write:
            yield may_write and self._is_writer

    def _facts(self) -> dict[str, object]:
        facts = RunFacts(
            corpus=self._corpus.fingerprint(),
            is_bytes=self._corpus.is_bytes,
            vocabulary=self._corpus.vocabulary,
            model=self._config.model,
            best=self._recent.best,
        )
        return cast("dict[str, object]", msgspec.to_builtins(facts))  # which is what a struct becomes

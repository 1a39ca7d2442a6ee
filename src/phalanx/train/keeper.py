"""Saving a run: its log, its checkpoints and its result.

Rank 0 writes everything, except that ranks that share the optimizer each write their own shard of a checkpoint.
"""

import math
import time
from typing import Self, cast

import msgspec

from phalanx.errors import ConfigError
from phalanx.group import Group
from phalanx.parallel import Engine, Exchange, digest_weights
from phalanx.train.checkpoint import Best, Checkpoint, RunFacts, prune, save, save_together
from phalanx.train.config import Config
from phalanx.train.data import Corpus
from phalanx.train.log import StepLog
from phalanx.train.model import generate
from phalanx.train.record import Result, StepRecord
from phalanx.train.rundir import RunDir

_SAMPLE_TOKENS = 160
_PROMPT = b"def "


class Keeper:
    """Writes a run into its directory as it proceeds. Every rank has a keeper and makes the same calls."""

    def __init__(
        self, run: RunDir, config: Config, corpus: Corpus, exchange: Exchange, best: Best | None = None
    ) -> None:
        self._run = run
        self._config = config
        self._corpus = corpus
        self._exchange = exchange
        self._best = best
        self._log = StepLog(run.steps) if exchange.rank == 0 else None
        self._began = time.perf_counter()
        self._tokens = 0
        self._last = self._log.last if self._log else None  # a run may have been killed before it was concluded

    def keep(self, record: StepRecord, engine: Engine, *, is_last: bool) -> bool:
        """Log a step, save a checkpoint if the step is the last or a checkpoint is due, and return whether one was.

        Before that, all ranks compare what is in it. So every checkpoint is from before a difference between ranks.
        """
        is_due = is_last or (record.step + 1) % self._config.run.checkpoint_every == 0
        if is_due:
            record = msgspec.structs.replace(record, state_digest=engine.compare().hex())
        if self._log:
            self._log.append(record)
        self._last = record
        self._tokens += record.tokens
        if is_due:
            self._save(record, engine)
        return is_due

    def conclude(self, engine: Engine) -> Result:
        """On rank 0: write the result of the run, and a sample of text from the model."""
        if self._last is None or self._last.step + 1 != engine.step_number:
            words = f"{self._run.steps} does not end with step {engine.step_number - 1}, which the checkpoint has"
            raise ConfigError(f"{words}: resume from an earlier checkpoint with --from-step")
        seconds = time.perf_counter() - self._began
        result = Result(
            steps=self._last.step + 1,
            loss=self._last.loss,
            eval_loss=self._last.eval_loss,
            digest=digest_weights(list(engine.model.state_dict().items())),
            tokens_per_s=self._tokens / seconds,
            workers=self._last.workers,
            seconds=seconds,
            unigram_entropy=self._corpus.unigram_entropy(),
        )
        try:
            if self._corpus.is_bytes:
                self._run.sample.write_bytes(self._write_text(engine))
            self._run.write_result(result)
        except OSError as error:
            words = f"cannot write the result of the run to {self._run.path}: {error.strerror}"
            raise ConfigError(f"{words}; free some space, then conclude it with --resume {self._run.path}") from error
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._log:
            self._log.close()

    def _write_text(self, engine: Engine) -> bytes:
        train, data = self._config.train, self._config.data
        prompt = list(_PROMPT)
        written = generate(engine.model, prompt, _SAMPLE_TOKENS, temperature=0.8, seed=train.seed, context=data.context)
        return bytes(prompt + written)

    def _save(self, record: StepRecord, engine: Engine) -> None:
        taken, held_out = record.step + 1, math.inf if record.eval_loss is None else record.eval_loss
        if held_out < (self._best.eval_loss if self._best else math.inf):  # false for NaN
            self._best = Best(taken, held_out)
        folder, is_first = self._run.checkpoints, self._exchange.rank == 0
        if self._config.run.zero:
            assert isinstance(self._exchange, Group), "the config refuses zero with a gradient server"
            state = engine.state()
            files = {"model": state["model"]} if is_first else {}
            save_together(folder, Checkpoint(taken, files, self._facts()), state["optimizer"], self._exchange)
        elif is_first:
            save(folder, Checkpoint(taken, engine.state(), self._facts()))
        if is_first:
            prune(folder, self._config.run.keep, self._best.step if self._best else None)

    def _facts(self) -> dict[str, object]:
        facts = RunFacts(
            corpus=self._corpus.fingerprint(),
            is_bytes=self._corpus.is_bytes,
            vocabulary=self._corpus.vocabulary,
            model=self._config.model,
            best=self._best,
        )
        return cast("dict[str, object]", msgspec.to_builtins(facts))  # which is what a struct becomes

"""What rank 0 keeps of a run: its log, its checkpoints, and what came of it."""

import math
import time
from typing import Self

import msgspec

from phalanx.errors import ConfigError
from phalanx.parallel import Engine, digest_weights
from phalanx.train.checkpoint import Checkpoint, prune, save
from phalanx.train.config import Config
from phalanx.train.data import Corpus
from phalanx.train.log import StepLog
from phalanx.train.model import generate
from phalanx.train.record import StepRecord
from phalanx.train.rundir import RunDir

_SAMPLE_TOKENS = 160
_PROMPT = b"def "


class Result(msgspec.Struct, frozen=True):
    """What came of a run, in figures; ``steps`` is how many it has taken all in all."""

    steps: int
    loss: float
    eval_loss: float | None
    digest: str
    tokens_per_s: float
    workers: int
    seconds: float
    unigram_entropy: float


class Best(msgspec.Struct, frozen=True):
    """The checkpoint with the least loss on what was held out."""

    step: int
    eval_loss: float


class Keeper:
    """Writes everything into the run directory as it comes."""

    def __init__(self, run: RunDir, config: Config, corpus: Corpus, best: Best | None = None) -> None:
        self._run = run
        self._config = config
        self._corpus = corpus
        self._best = best
        self._log = StepLog(run.steps)
        self._began = time.perf_counter()
        self._tokens = 0
        self._last: StepRecord | None = None

    def keep(self, record: StepRecord, engine: Engine, *, is_last: bool) -> None:
        """Keep a step, and a checkpoint if it is the last or it is time for one."""
        self._log.append(record)
        self._last = record
        self._tokens += record.tokens
        if is_last or (record.step + 1) % self._config.run.checkpoint_every == 0:
            self._save(record, engine)

    def conclude(self, engine: Engine) -> Result:
        """Write what came of the run, and a sample of what the model writes."""
        assert self._last, "a run has taken a step"
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
            self._run.result.write_bytes(msgspec.json.encode(result))
        except OSError as error:
            words = f"cannot write what came of the run to {self._run.path}: {error.strerror}"
            raise ConfigError(f"{words}; its last checkpoint is whole: make room, and use it") from error
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def _write_text(self, engine: Engine) -> bytes:
        train, data = self._config.train, self._config.data
        prompt = list(_PROMPT)
        written = generate(engine.model, prompt, _SAMPLE_TOKENS, temperature=0.8, seed=train.seed, context=data.context)
        return bytes(prompt + written)

    def _save(self, record: StepRecord, engine: Engine) -> None:
        taken, held_out = record.step + 1, math.inf if record.eval_loss is None else record.eval_loss
        if held_out < (self._best.eval_loss if self._best else math.inf):  # which NaN is not
            self._best = Best(taken, held_out)
        corpus = self._corpus
        facts = {
            "corpus": corpus.fingerprint(),
            "is_bytes": corpus.is_bytes,
            "best": msgspec.to_builtins(self._best),
        }
        save(self._run.checkpoints, Checkpoint(taken, engine.state(), facts))
        prune(self._run.checkpoints, self._config.run.keep, self._best.step if self._best else None)

"""What a checkpoint must contain by its facts, which are those of a run or of a bundle."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta

from phalanx.checkpoint import (
    Label,
    Sets,
    TensorLook,
    Tensors,
    collect_spans,
    compare_looks,
    compare_names,
    find_misfit,
    look_at,
    unite,
    without_spans,
)
from phalanx.errors import ConfigError
from phalanx.train.config import Config, ModelConfig
from phalanx.train.config_text import parse_config
from phalanx.train.shapes import list_shapes

_MOMENTS = ("exp_avg", "exp_avg_sq")
_Vocabulary = Annotated[int, Meta(ge=1, le=2**16)]
_Number = Annotated[int, Meta(ge=0, lt=2**62)]


class Best(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The checkpoint with the lowest held-out loss."""

    step: _Number
    eval_loss: float


class RunFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The facts of a checkpoint from which a run resumes."""

    corpus: str
    is_bytes: bool
    vocabulary: _Vocabulary
    model: ModelConfig
    best: Best | None


class BundleFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The facts of a bundle, from which a lane can be computed again."""

    config: str
    vocabulary: _Vocabulary
    lane: _Number
    parameter: str
    samples: tuple[_Number, ...]

    def __post_init__(self) -> None:
        if self.lane >= self.parse_config().train.lanes:
            raise ConfigError(f"there is no lane {self.lane} in its config")

    def parse_config(self) -> Config:
        """Return the config of the run that halted."""
        return parse_config(self.config)


def parse_facts(facts: Mapping[str, Any]) -> RunFacts | BundleFacts | None:
    """Return the facts of a run or a bundle, or None if people saved the checkpoint themselves."""
    if facts.keys() & {"corpus", "is_bytes"}:  # either would do, unless one is missing
        return msgspec.convert(facts, RunFacts)
    return msgspec.convert(facts, BundleFacts) if "lane" in facts else None


def find_fault(step: int, facts: Mapping[str, Any], sets: Sets) -> str | None:
    """Return what is wrong with the tensors of a checkpoint that has these facts, or None."""
    parsed = parse_facts(facts)
    united = {name: unite(shards) for name, shards in sets.items()}
    if isinstance(parsed, RunFacts) and (misfit := find_misfit(sets.get("optimizer", {}), united.get("model", {}))):
        return misfit
    return next(_find_faults(step, parsed, united), None)


def _find_faults(step: int, facts: RunFacts | BundleFacts | None, sets: Mapping[str, Tensors]) -> Iterator[str]:
    if isinstance(facts, RunFacts):
        yield from _find_run_faults(step, facts, sets)
    elif isinstance(facts, BundleFacts):
        yield from _find_bundle_faults(facts, sets)


def _find_run_faults(step: int, facts: RunFacts, sets: Mapping[str, Tensors]) -> Iterator[str]:
    shapes = list_shapes(facts.model, facts.vocabulary)
    yield from compare_names(sets, ("model", "optimizer"))
    yield from compare_looks(look_at(sets["model"]), {name: TensorLook(shape) for name, shape in shapes.items()})
    state = sets["optimizer"]
    spans = {
        str(label): TensorLook(shapes.get(label.name, ()), found[0].values.dtype)
        for label, found in collect_spans(state).items()
    }
    # AdamW keeps two values for each element of a parameter, and once how often it was updated.
    moments = {str(Label(name, key)): TensorLook(shape) for name, shape in shapes.items() for key in _MOMENTS}
    counts = {str(Label(name, "step")): TensorLook(()) for name in shapes}
    yield from compare_looks(without_spans(look_at(state)) | spans, moments | counts)
    for text in counts:
        if (taken := state[text].item()) != step:
            yield f"{text} is {taken:g} in a checkpoint of step {step}"


def _find_bundle_faults(facts: BundleFacts, sets: Mapping[str, Tensors]) -> Iterator[str]:
    config = facts.parse_config()
    shapes = list_shapes(config.model, facts.vocabulary)
    yield from compare_names(sets, ("batches", "model"))
    yield from compare_looks(look_at(sets["model"]), {name: TensorLook(shape) for name, shape in shapes.items()})
    train = config.train
    rows = TensorLook((train.batch // train.lanes // train.accumulate, config.data.context + 1), torch.int64)
    yield from compare_looks(look_at(sets["batches"]), {str(number): rows for number in range(train.accumulate)})
    for name, batch in sets["batches"].items():
        if not 0 <= int(batch.min()) <= int(batch.max()) < facts.vocabulary:
            yield f"batch {name} has tokens that are not in the vocabulary of {facts.vocabulary}"

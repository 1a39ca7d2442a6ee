"""What a checkpoint must contain, by its facts (those of a run or of a bundle) and by the list of what was saved."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, NamedTuple

import msgspec
import torch
from msgspec import Meta

from phalanx.errors import ConfigError
from phalanx.parallel import Label, parse_label
from phalanx.train.checkpoint.shard_files import Tensors, collect_spans, find_misfit, unite
from phalanx.train.checkpoint.tensor_file import TENSORS
from phalanx.train.config import Config, ModelConfig
from phalanx.train.config_text import parse_config
from phalanx.train.shapes import list_shapes

Sets = Mapping[str, Mapping[str, Tensors]]
"""The tensors of a checkpoint, by set and then by file."""

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


def list_tensors(sets: Sets) -> dict[str, dict[str, str]]:
    """Return the type and the shape of all tensors in words, by set and name; the spans of a label as one."""
    listed = {}
    for name, shards in sets.items():
        looks = _look_at(unite(shards))
        if name + TENSORS not in shards:
            looks = _without_spans(looks) | {
                str(label): _Look((spans[-1].stop,), spans[0].values.dtype)
                for label, spans in collect_spans(unite(shards)).items()
            }
        listed[name] = {text: str(looks[text]) for text in sorted(looks)}
    return listed


def find_fault(
    step: int, facts: RunFacts | BundleFacts | None, sets: Sets, saved: Mapping[str, Mapping[str, str]]
) -> str | None:
    """Return what is wrong with the tensors of a checkpoint, or None. ``saved`` lists what was saved."""
    model = unite(sets.get("model", {}))
    for name, shards in sets.items():
        is_whole = name + TENSORS in shards
        if is_whole and len(shards) > 1:
            return f"{name} is stored both whole and in shards"
        is_state = isinstance(facts, RunFacts) and name == "optimizer"
        if (is_state or not is_whole) and (misfit := find_misfit(shards, model)):
            return misfit
    united = {name: unite(shards) for name, shards in sets.items()}
    return next(chain(_find_faults(step, facts, united), _find_changes(list_tensors(sets), saved)), None)


def _find_faults(step: int, facts: RunFacts | BundleFacts | None, sets: Mapping[str, Tensors]) -> Iterator[str]:
    if isinstance(facts, RunFacts):
        yield from _find_run_faults(step, facts, sets)
    elif isinstance(facts, BundleFacts):
        yield from _find_bundle_faults(facts, sets)


def _find_run_faults(step: int, facts: RunFacts, sets: Mapping[str, Tensors]) -> Iterator[str]:
    shapes = list_shapes(facts.model, facts.vocabulary)
    yield from _compare_names(sets, ("model", "optimizer"))
    yield from _compare(_look_at(sets["model"]), {name: _Look(shape) for name, shape in shapes.items()})
    state = sets["optimizer"]
    spans = {
        str(label): _Look(shapes.get(label.name, ()), found[0].values.dtype)
        for label, found in collect_spans(state).items()
    }
    # AdamW keeps two values for each element of a parameter, and once how often it was updated.
    moments = {str(Label(name, key)): _Look(shape) for name, shape in shapes.items() for key in _MOMENTS}
    counts = {str(Label(name, "step")): _Look(()) for name in shapes}
    yield from _compare(_without_spans(_look_at(state)) | spans, moments | counts)
    for text in counts:
        if (taken := state[text].item()) != step:
            yield f"{text} is {taken:g} in a checkpoint of step {step}"


def _find_bundle_faults(facts: BundleFacts, sets: Mapping[str, Tensors]) -> Iterator[str]:
    config = facts.parse_config()
    shapes = list_shapes(config.model, facts.vocabulary)
    yield from _compare_names(sets, ("batches", "model"))
    yield from _compare(_look_at(sets["model"]), {name: _Look(shape) for name, shape in shapes.items()})
    train = config.train
    rows = _Look((train.batch // train.lanes // train.accumulate, config.data.context + 1), torch.int64)
    yield from _compare(_look_at(sets["batches"]), {str(number): rows for number in range(train.accumulate)})
    for name, batch in sets["batches"].items():
        if not 0 <= int(batch.min()) <= int(batch.max()) < facts.vocabulary:
            yield f"batch {name} has tokens that are not in the vocabulary of {facts.vocabulary}"


def _find_changes(found: Mapping[str, Mapping[str, str]], saved: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    yield from _compare_names(found, sorted(saved))
    for name, tensors in saved.items():
        yield from _compare(found[name], tensors)


class _Look(NamedTuple):
    """The shape and the type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"


def _look_at(tensors: Tensors) -> dict[str, _Look]:
    return {name: _Look(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def _without_spans(looks: Mapping[str, _Look]) -> dict[str, _Look]:
    return {text: look for text, look in looks.items() if not parse_label(text).span}


def _compare_names(sets: Mapping[str, object], expected: Sequence[str]) -> Iterator[str]:
    if sorted(sets) != list(expected):
        yield f"it has {' and '.join(sorted(sets)) or 'nothing'} instead of {' and '.join(expected) or 'nothing'}"


def _compare(found: Mapping[str, object], expected: Mapping[str, object]) -> Iterator[str]:
    for name, look in expected.items():
        if name not in found:
            yield f"{name} is missing"
        elif found[name] != look:
            yield f"{name} is {found[name]} instead of {look}"
    for name in found.keys() - expected.keys():
        yield f"it has {name}, which does not belong there"

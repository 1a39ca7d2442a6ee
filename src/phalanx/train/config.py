"""What a run is made of: a value in which nothing impossible can exist."""

import operator
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, ClassVar, get_args

import msgspec
from msgspec import Meta

from phalanx.errors import ConfigError

_BOUNDS = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "greater than"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "less than"),
}


class Transport(Enum):
    """What gradients travel through."""

    AUTO = "auto"
    ARENA = "arena"
    TCP = "tcp"
    STAR = "star"


class Device(Enum):
    """What the model is computed on."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    section: ClassVar[str]

    def __post_init__(self) -> None:
        for name, _, meta in fields_of(type(self)):
            for bound, (holds, words) in _BOUNDS.items():
                limit, value = getattr(meta, bound), getattr(self, name)
                if limit is not None and not holds(value, limit):
                    raise ConfigError(f"{self.section}.{name} must be {words} {limit}, not {value}")


class ModelConfig(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape of the transformer."""

    section: ClassVar[str] = "model"

    layers: Annotated[int, Meta(ge=1, description="Blocks, one above the other.")] = 4
    width: Annotated[int, Meta(ge=1, description="Elements of the vector that stands for a token.")] = 128
    heads: Annotated[int, Meta(ge=1, description="Heads that ask, in each block's attention.")] = 4
    kv_heads: Annotated[int, Meta(ge=1, description="Heads that answer; each serves heads / kv_heads that ask.")] = 2
    hidden: Annotated[int, Meta(ge=1, description="Elements of the layer inside each block's MLP.")] = 384
    tied: Annotated[bool, Meta(description="Whether the embedding is the LM head, too.")] = True
    dropout: Annotated[float, Meta(ge=0, lt=1, description="Fraction of activations dropped while training.")] = 0.0
    rope_base: Annotated[float, Meta(ge=1, le=1e9, description="Base of the wavelengths of the rotary positions.")] = (
        10000.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ConfigError(
                f"model.width {self.width} cannot be shared by {self.heads} heads: make it a multiple of model.heads"
            )
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"model.heads {self.heads} cannot be shared by {self.kv_heads} kv_heads: "
                "make it a multiple of model.kv_heads"
            )
        if self.head_width % 2:
            raise ConfigError(
                f"a head of {self.head_width} elements has no pairs for rotary positions to turn: "
                "make model.width / model.heads even"
            )

    @property
    def head_width(self) -> int:
        """Elements of one head."""
        return self.width // self.heads


class DataConfig(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is learnt."""

    section: ClassVar[str] = "data"

    path: Annotated[
        str | None,
        Meta(
            description="A text file, a folder of them, or a .bin of uint16 tokens; "
            "without it, the source of the running Python's standard library."
        ),
    ] = None
    held_out: Annotated[float, Meta(gt=0, le=0.5, description="Fraction at the end kept for evaluation.")] = 0.05
    context: Annotated[int, Meta(ge=1, description="Tokens of a sequence.")] = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path == "":
            raise ConfigError("data.path is empty: name a file or a folder, or leave the key out")


class TrainConfig(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How it is learnt."""

    section: ClassVar[str] = "train"

    steps: Annotated[int, Meta(ge=1, description="Updates of the weights.")] = 300
    batch: Annotated[int, Meta(ge=1, description="Sequences in a step.")] = 16
    lanes: Annotated[int, Meta(ge=1, description="Fixed fractions of the batch, shared out among the workers.")] = 8
    accumulate: Annotated[int, Meta(ge=1, description="Micro-batches that a lane is cut into, to save memory.")] = 1
    lr: Annotated[float, Meta(gt=0, le=1, description="Learning rate after the warm-up.")] = 3e-3
    min_lr: Annotated[float, Meta(ge=0, description="Learning rate of the last step.")] = 3e-4
    warmup: Annotated[int, Meta(ge=0, description="Steps in which the learning rate rises.")] = 20
    weight_decay: Annotated[float, Meta(ge=0, le=1, description="AdamW's pull towards zero.")] = 0.1
    beta1: Annotated[float, Meta(ge=0, lt=1, description="AdamW's memory of gradients.")] = 0.9
    beta2: Annotated[float, Meta(ge=0, lt=1, description="AdamW's memory of their squares.")] = 0.95
    clip: Annotated[float, Meta(ge=0, le=1e9, description="Largest norm of the gradient; 0 lets any pass.")] = 1.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="Decides first weights, order and dropout.")] = 0
    autocast: Annotated[bool, Meta(description="Whether matrix products are done in bf16.")] = False
    eval_every: Annotated[int, Meta(ge=1, description="Steps from one evaluation to the next.")] = 100
    eval_batches: Annotated[int, Meta(ge=1, description="Held-out batches in an evaluation.")] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch % (self.lanes * self.accumulate):
            raise ConfigError(
                f"train.batch {self.batch} cannot be cut evenly into {self.lanes} lanes of {self.accumulate} "
                f"micro-batches: make it a multiple of {self.lanes * self.accumulate}"
            )
        if self.warmup > self.steps:
            raise ConfigError(
                f"train.warmup {self.warmup} outlasts the {self.steps} steps of the run: lower it or raise train.steps"
            )
        if self.min_lr > self.lr:
            raise ConfigError(f"train.min_lr {self.min_lr} is above train.lr {self.lr}: lower it or raise train.lr")


class RunConfig(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who computes, on what, and what is kept."""

    section: ClassVar[str] = "run"

    workers: Annotated[int, Meta(ge=1, description="Processes that share the lanes.")] = 2
    threads_per_worker: Annotated[
        int, Meta(ge=1, description="Threads of each; other numbers may give other bits.")
    ] = 1
    transport: Annotated[Transport, Meta(description="What gradients travel through.")] = Transport.AUTO
    zero: Annotated[bool, Meta(description="Whether workers share the optimizer, each keeping its part.")] = False
    device: Annotated[Device, Meta(description="What the model is computed on.")] = Device.AUTO
    directory: Annotated[
        str | None, Meta(description="Where the run is kept; without it, a new folder under runs/.")
    ] = None
    checkpoint_every: Annotated[int, Meta(ge=1, description="Steps from one checkpoint to the next.")] = 100
    keep: Annotated[int, Meta(ge=1, description="Checkpoints kept, the latest ones, beside the best.")] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.directory == "":
            raise ConfigError("run.directory is empty: name a folder, or leave the key out")
        if self.zero and self.transport is Transport.STAR:
            raise ConfigError(
                "workers that only reach a gradient server cannot share an optimizer: pass --no-zero, or another "
                "--transport"
            )


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of a run; ``Config()`` trains a small model on Python's own source."""

    model: ModelConfig = msgspec.field(default_factory=ModelConfig)
    data: DataConfig = msgspec.field(default_factory=DataConfig)
    train: TrainConfig = msgspec.field(default_factory=TrainConfig)
    run: RunConfig = msgspec.field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        if self.train.lanes < self.run.workers:
            raise ConfigError(
                f"{self.train.lanes} lanes leave some of {self.run.workers} workers without any: "
                "raise train.lanes or lower run.workers"
            )


def fields_of(section: type[_Section]) -> Iterator[tuple[str, Any, Meta]]:  # Any: a type or a union of types
    """The keys of a section, with their types and what is said about them."""
    for field in msgspec.structs.fields(section):
        kind, meta = get_args(field.type)
        yield field.name, kind, meta


SECTIONS: dict[str, type[_Section]] = {
    section.section: section for section in (ModelConfig, DataConfig, TrainConfig, RunConfig)
}

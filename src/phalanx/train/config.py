"""The config of a run. A config that exists is valid."""

import operator
import unicodedata
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, ClassVar, get_args

import msgspec
from msgspec import Meta

from phalanx.errors import ConfigError
from phalanx.train.step_range import parse_steps

_BOUNDS = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "greater than"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "less than"),
}


_MOST_TOKENS = 2**31
_LONGEST_PATH = 4096
_UNWRITABLE = ("Cc", "Cs")  # control characters, and halves of pairs, which are no text


class Transport(Enum):
    """How gradients are exchanged."""

    AUTO = "auto"
    ARENA = "arena"
    TCP = "tcp"
    STAR = "star"


class EngineChoice(Enum):
    """What carries gradients between workers."""

    PHALANX = "phalanx"
    TORCH = "torch"


class TorchBackend(Enum):
    """The backend of torch.distributed."""

    AUTO = "auto"
    GLOO = "gloo"
    NCCL = "nccl"
    MPI = "mpi"


class Device(Enum):
    """The device that the model is on."""

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

    layers: Annotated[int, Meta(ge=1, le=1000, description="Transformer blocks.")] = 4
    width: Annotated[int, Meta(ge=1, le=2**16, description="Elements of the vector of a token.")] = 128
    heads: Annotated[int, Meta(ge=1, le=2**12, description="Query heads of each block's attention.")] = 4
    kv_heads: Annotated[
        int, Meta(ge=1, le=2**12, description="Key and value heads; each serves heads / kv_heads query heads.")
    ] = 2
    hidden: Annotated[int, Meta(ge=1, le=2**20, description="Width of each block's MLP.")] = 384
    tied: Annotated[bool, Meta(description="Whether the LM head shares the embedding's weights.")] = True
    dropout: Annotated[float, Meta(ge=0, lt=1, description="Fraction of activations dropped while training.")] = 0.0
    rope_base: Annotated[float, Meta(ge=1, le=1e9, description="Base of the wavelengths of the rotary positions.")] = (
        10000.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ConfigError(
                f"model.width {self.width} cannot be split into {self.heads} heads: make it a multiple of model.heads"
            )
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"model.heads {self.heads} cannot be divided among {self.kv_heads} kv_heads: "
                "make it a multiple of model.kv_heads"
            )
        if self.head_width % 2:
            raise ConfigError(
                f"rotary positions need an even head width, not {self.head_width}: make model.width / model.heads even"
            )

    @property
    def head_width(self) -> int:
        """The elements of one head."""
        return self.width // self.heads


class DataConfig(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The text to learn."""

    section: ClassVar[str] = "data"

    path: Annotated[
        str | None,
        Meta(
            description="A text file, a folder of them, or a .bin of uint16 tokens; "
            "without it, the source of the running Python's standard library."
        ),
    ] = None
    held_out: Annotated[float, Meta(gt=0, le=0.5, description="Fraction at the end kept for evaluation.")] = 0.05
    context: Annotated[int, Meta(ge=1, le=2**20, description="Tokens of a sequence.")] = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_path("data.path", self.path)


class TrainConfig(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to train."""

    section: ClassVar[str] = "train"

    steps: Annotated[int, Meta(ge=1, le=10**9, description="Updates of the weights.")] = 300
    batch: Annotated[int, Meta(ge=1, le=2**20, description="Sequences in a step.")] = 16
    lanes: Annotated[
        int, Meta(ge=1, le=2**14, description="Fixed fractions of the batch, divided among the workers.")
    ] = 8
    accumulate: Annotated[
        int, Meta(ge=1, le=2**14, description="Micro-batches of each lane; more need less memory.")
    ] = 1
    lr: Annotated[float, Meta(gt=0, le=1, description="Learning rate after the warm-up.")] = 3e-3
    min_lr: Annotated[float, Meta(ge=0, le=1, description="Learning rate of the last step.")] = 3e-4
    warmup: Annotated[int, Meta(ge=0, le=10**9, description="Steps in which the learning rate rises.")] = 20
    weight_decay: Annotated[float, Meta(ge=0, le=1, description="Weight decay of AdamW.")] = 0.1
    beta1: Annotated[float, Meta(ge=0, lt=1, description="AdamW's decay of the first moment.")] = 0.9
    beta2: Annotated[float, Meta(ge=0, lt=1, description="AdamW's decay of the second moment.")] = 0.95
    clip: Annotated[float, Meta(ge=0, le=1e9, description="Clip the gradient to this norm; 0 does not clip.")] = 1.0
    seed: Annotated[
        int, Meta(ge=0, le=2**63 - 1, description="Seed of the first weights, the order of samples and dropout.")
    ] = 0
    autocast: Annotated[bool, Meta(description="Whether matrix products are computed in bf16.")] = False
    eval_every: Annotated[int, Meta(ge=1, le=10**9, description="Steps from one evaluation to the next.")] = 100
    eval_batches: Annotated[int, Meta(ge=1, le=10**9, description="Held-out batches in an evaluation.")] = 4

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
    """The workers, their devices, and what the run saves."""

    section: ClassVar[str] = "run"

    workers: Annotated[int, Meta(ge=1, le=2**12, description="Processes that share the lanes.")] = 2
    min_workers: Annotated[
        int, Meta(ge=1, le=2**12, description="The fewest with which the run goes on when others are lost.")
    ] = 1
    threads_per_worker: Annotated[
        int, Meta(ge=1, le=2**10, description="Threads of each worker; another number may give other bits.")
    ] = 1
    engine: Annotated[
        EngineChoice, Meta(description="What carries gradients: our own transports, or torch.distributed.")
    ] = EngineChoice.PHALANX
    torch_backend: Annotated[
        TorchBackend, Meta(description="With engine torch: its backend; auto is NCCL on GPUs and else Gloo.")
    ] = TorchBackend.AUTO
    transport: Annotated[Transport, Meta(description="How gradients are exchanged.")] = Transport.AUTO
    zero: Annotated[bool, Meta(description="Whether workers share the optimizer state (ZeRO-1).")] = False
    paranoid: Annotated[
        bool, Meta(description="Whether to look for bits that a faulty machine changes in gradients and state.")
    ] = False
    device: Annotated[Device, Meta(description="The device that the model is on.")] = Device.AUTO
    gpu: Annotated[
        int | None, Meta(description="The number of the GPU of all workers; by default they take turns among all GPUs.")
    ] = None
    directory: Annotated[
        str | None, Meta(description="The directory of the run; by default a new one under runs/.")
    ] = None
    checkpoint_every: Annotated[int, Meta(ge=1, le=10**9, description="Steps from one checkpoint to the next.")] = 100
    keep: Annotated[
        int, Meta(ge=1, le=10**9, description="How many of the latest checkpoints to keep, besides the best.")
    ] = 3
    telemetry: Annotated[
        bool, Meta(description="Whether workers record what they do when, for phalanx trace and phalanx blame.")
    ] = True
    profile_steps: Annotated[
        str | None, Meta(description="Steps to profile with torch.profiler on every worker, as in 100:105.")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_path("run.directory", self.directory)
        if self.profile_steps is not None:
            parse_steps(self.profile_steps, "run.profile_steps")
        if self.min_workers > self.workers:
            raise ConfigError(
                f"run.min_workers {self.min_workers} is more than run.workers {self.workers}: lower it, or raise those"
            )
        if self.gpu is not None and (self.gpu < 0 or self.device is Device.CPU):
            raise ConfigError(f"run.gpu is the number of a GPU, from 0 on, and run.device is not cpu: not {self.gpu}")
        if self.engine is EngineChoice.TORCH:
            self._check_torch()
        elif self.torch_backend is not TorchBackend.AUTO:
            raise ConfigError("run.torch_backend is for run.engine torch: pass --engine torch too, or leave it out")
        if self.zero and self.transport is Transport.STAR:
            raise ConfigError(
                "workers that reach only a gradient server cannot share the optimizer: pass --no-zero, or another "
                "--transport"
            )
        if self.paranoid and self.transport is Transport.STAR:
            raise ConfigError(
                "workers that reach only a gradient server cannot check sums: pass --no-paranoid, or another "
                "--transport"
            )

    def _check_torch(self) -> None:
        """Raise ConfigError if something is asked for that only our own transports can do."""
        asked = {
            "--transport": self.transport is not Transport.AUTO,
            "--zero": self.zero,
            "--paranoid": self.paranoid,
            "a range of workers": self.min_workers not in (1, self.workers),
        }
        for name, is_asked in asked.items():
            if is_asked:
                raise ConfigError(f"{name} needs our own transports: leave it out, or leave out --engine torch")


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole config of a run. ``Config()`` trains a small model on Python's own source."""

    model: ModelConfig = msgspec.field(default_factory=ModelConfig)
    data: DataConfig = msgspec.field(default_factory=DataConfig)
    train: TrainConfig = msgspec.field(default_factory=TrainConfig)
    run: RunConfig = msgspec.field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        if self.train.lanes < self.run.workers:
            raise ConfigError(
                f"{self.train.lanes} lanes are too few for {self.run.workers} workers: "
                "raise train.lanes or lower run.workers"
            )
        tokens = self.train.batch * self.data.context
        if tokens > _MOST_TOKENS:
            raise ConfigError(
                f"a step of train.batch {self.train.batch} sequences of data.context {self.data.context} has "
                f"{tokens:,} tokens, and at most {_MOST_TOKENS:,} are possible: lower one of them"
            )


def _check_path(name: str, path: str | None) -> None:
    if path == "":
        raise ConfigError(f"{name} is empty: name a file or a folder, or leave the key out")
    if path and len(path) > _LONGEST_PATH:
        raise ConfigError(f"{name} has {len(path):,} letters, and a path has at most {_LONGEST_PATH:,}: shorten it")
    if path and any(unicodedata.category(letter) in _UNWRITABLE for letter in path):
        raise ConfigError(f"{name} {path!r} has a control character, which no file of ours may have in its name")


def fields_of(section: type[_Section]) -> Iterator[tuple[str, Any, Meta]]:  # Any: a type or a union of types
    """Yield the keys of a section with their types, limits and descriptions."""
    for field in msgspec.structs.fields(section):
        kind, meta = get_args(field.type)
        yield field.name, kind, meta


SECTIONS: dict[str, type[_Section]] = {
    section.section: section for section in (ModelConfig, DataConfig, TrainConfig, RunConfig)
}

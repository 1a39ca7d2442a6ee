"""What workers of one run must have in common, as facts that can be sent to others and compared with their own."""

import hashlib
import importlib.metadata
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from phalanx.buffers import slices
from phalanx.errors import ConfigError
from phalanx.train.config import SECTIONS, Config, fields_of
from phalanx.train.config_text import format_config, parse_config
from phalanx.train.data import Corpus

_MAY_DIFFER = (
    "data.path",
    "run.workers",
    "run.min_workers",
    "run.directory",
    "run.device",
    "run.gpu",
)  # device: see below
_RUN = 2**24
_Word = Annotated[str, Meta(max_length=200)]


class DataFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text: its name where it was read, its size in bytes, the type of its tokens, and a digest of all of them."""

    name: Annotated[str, Meta(max_length=4096)]
    size: Annotated[int, Meta(ge=1, lt=2**62)]
    kind: _Word
    digest: _Word

    def __str__(self) -> str:
        return f"{self.name} with {self.size:,} bytes of {self.kind}, digest {self.digest[:16]}"


class RunDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What decides the bits of a run: its config, its data, and what computes it.

    ``run`` is a word of its own, and ``directory`` where the run is saved. Machines that lack the data get it at the
    addresses that ``offers_data`` lists.
    """

    config: Annotated[str, Meta(max_length=2**18)]
    run: _Word
    data: DataFacts
    phalanx: _Word
    torch: _Word
    threads: Annotated[int, Meta(ge=1, lt=2**16)]
    device: _Word
    directory: Annotated[str, Meta(max_length=2**13)] = ""
    offers_data: Annotated[tuple[_Word, ...], Meta(max_length=64)] = ()

    def read_config(self) -> Config:
        """Return the config of the run."""
        return parse_config(self.config, source="the config that the coordinator told")


def describe_data(corpus: Corpus) -> DataFacts:
    """Return the facts of a text. This reads all of it."""
    digest = hashlib.blake2b(f"{corpus.tokens.dtype} {len(corpus.tokens)} ".encode(), digest_size=32)
    for run in slices(slice(0, len(corpus.tokens)), _RUN):
        digest.update(corpus.tokens[run].tobytes())
    name = corpus.name if corpus.name.isprintable() else repr(corpus.name)
    size, kind = corpus.tokens.nbytes, str(corpus.tokens.dtype)
    return DataFacts(name=name, size=size, kind=kind, digest=digest.hexdigest())


def describe_run(config: Config, corpus: Corpus, *, run: str, version: str, device: str) -> RunDescription:
    """Return what this machine would train. ``version`` is that of Phalanx, which this layer cannot import."""
    return RunDescription(
        config=format_config(config),
        run=run,
        data=describe_data(corpus),
        phalanx=version,
        torch=importlib.metadata.version("torch"),
        threads=config.run.threads_per_worker,
        device=device,
    )


def encode_description(description: RunDescription) -> bytes:
    """Return the facts as they are sent."""
    return msgspec.json.encode(description)


def decode_description(facts: bytes) -> RunDescription:
    """Return what ``encode_description`` was given. Other bytes are a ConfigError."""
    try:
        return msgspec.json.decode(facts, type=RunDescription)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        words = "the coordinator describes a run that this release of phalanx cannot read"
        raise ConfigError(f"{words}: {error}; run the same release on every machine") from error


def check_same(own: RunDescription, theirs: RunDescription) -> None:
    """Raise ConfigError with all differences, each with both sides, unless this machine would give the same bits."""
    if differences := list(_differences(own, theirs)):
        raise ConfigError("this machine cannot train in that run: " + "; ".join(differences))


def _differences(own: RunDescription, theirs: RunDescription) -> Iterator[str]:
    for name, what in (("phalanx", "phalanx is version"), ("torch", "torch is version"), ("device", "the device is")):
        here, there = getattr(own, name), getattr(theirs, name)
        if here != there:
            yield f"{what} {here} here and {there} there"
    mine, others = own.read_config(), theirs.read_config()
    for section, kind in SECTIONS.items():
        for key, _, _ in fields_of(kind):
            here, there = getattr(getattr(mine, section), key), getattr(getattr(others, section), key)
            if here != there and f"{section}.{key}" not in _MAY_DIFFER:
                yield f"{section}.{key} is {_show(here)} here and {_show(there)} there"
    if (own.data.size, own.data.kind, own.data.digest) != (theirs.data.size, theirs.data.kind, theirs.data.digest):
        yield f"the data is {own.data} here, and {theirs.data} there"


def _show(value: object) -> str:
    return str(getattr(value, "value", value))

"""The manifest of a checkpoint: its files with their hashes, and its tensors."""

import re
from itertools import chain
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from phalanx.checkpoint.shard_files import ShardFile, list_shards
from phalanx.checkpoint.tensor_file import TENSORS, FileDigest, find_damage
from phalanx.errors import ConfigError
from phalanx.plain_file import read_plain

FACTS = "facts.json"
MANIFEST = "manifest.json"
FORMAT = 2
_MOST_BYTES = 2**26
_MOST_WORDS = 500
_PLAIN_NAME = re.compile(r"[^\W.][\w.-]{0,200}" + re.escape(TENSORS), re.ASCII)  # no path, and no device


Decoded = TypeVar("Decoded")


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The files that a checkpoint must have, and the tensors that were in them when it was saved."""

    format: int
    step: Annotated[int, msgspec.Meta(ge=0)]
    files: dict[str, FileDigest]
    tensors: dict[str, dict[str, str]] = {}  # has a default so that another format is refused as such

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ConfigError(f"its format is {self.format}, and this version of Phalanx reads {FORMAT}")
        if FACTS not in self.files:
            raise ConfigError(f"it does not list {FACTS}")
        for name in self.files:
            if name != FACTS and not _PLAIN_NAME.fullmatch(name):
                raise ConfigError(f"{name!r} is not the name of a file of tensors in the checkpoint's own directory")


def check(path: Path) -> Manifest:
    """Return the manifest of a checkpoint after checking all its files. A ConfigError names the first bad one."""
    manifest = read_manifest(path)
    for name, entry in manifest.files.items():
        if damage := find_damage(path / name, entry):
            raise damaged(path, f"{name} {damage}")
    if unlisted := _find_unlisted(path, manifest):
        raise damaged(path, f"{unlisted} is not in its {MANIFEST}")
    return manifest


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a checkpoint without checking the files."""
    manifest = decode(path, MANIFEST, Manifest)
    if path.name != f"step-{manifest.step:08}":
        raise damaged(path, f"{MANIFEST} belongs to step {manifest.step}")
    return manifest


def decode(path: Path, name: str, kind: type[Decoded]) -> Decoded:
    """Return what a JSON file of a checkpoint holds."""
    try:
        return msgspec.json.decode(read_plain(path / name, _MOST_BYTES), type=kind)
    except OSError as error:
        raise damaged(path, f"{name} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(path, f"{name} is altered, truncated or from another version of Phalanx: {error}") from error


def damaged(path: Path, words: str) -> ConfigError:
    """Return the error that says what is wrong with a checkpoint. Words from its files are escaped and shortened."""
    shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in words[:_MOST_WORDS])
    return ConfigError(f"checkpoint {path} is damaged: {shown}{' ...' if len(words) > _MOST_WORDS else ''}")


def _find_unlisted(path: Path, manifest: Manifest) -> str | None:
    """Return a shard file that is missing from the manifest although other shards of the same set are listed."""
    try:
        present = [each.name for each in path.iterdir()]
    except OSError as error:
        raise damaged(path, f"it cannot be read: {error.strerror}") from error
    shards = list_shards([*manifest.files, *present])
    expected = {(shard.name, shard.size) for shard in shards}
    wanted = (ShardFile(name, rank, size) for name, size in sorted(expected) for rank in range(size))
    return next((str(shard) for shard in chain(shards, wanted) if str(shard) not in manifest.files), None)

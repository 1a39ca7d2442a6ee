"""The manifest of a checkpoint: its files and their hashes."""

from itertools import chain
from pathlib import Path

import msgspec

from phalanx.errors import ConfigError
from phalanx.train.checkpoint.shard_files import ShardFile, list_shards
from phalanx.train.checkpoint.tensor_file import FileDigest, find_damage

FACTS = "facts.json"
MANIFEST = "manifest.json"
_FORMAT = 1


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The files that a checkpoint must have."""

    format: int = _FORMAT
    step: int
    files: dict[str, FileDigest]

    def __post_init__(self) -> None:
        if self.format != _FORMAT or FACTS not in self.files:
            raise ValueError("not a manifest of ours")


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
    try:
        manifest = msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
    except OSError as error:
        raise damaged(path, f"{MANIFEST} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(path, f"{MANIFEST} is altered, truncated or from another version of Phalanx") from error
    if path.name != f"step-{manifest.step:08}":
        raise damaged(path, f"{MANIFEST} belongs to step {manifest.step}")
    return manifest


def damaged(path: Path, words: str) -> ConfigError:
    """Return the error that says what is wrong with a checkpoint."""
    return ConfigError(f"checkpoint {path} is damaged: {words}")


def _find_unlisted(path: Path, manifest: Manifest) -> str | None:
    """Return a shard file that is missing from the manifest although other shards of the same set are listed."""
    shards = list_shards([*manifest.files, *(each.name for each in path.iterdir())])
    expected = {(shard.name, shard.size) for shard in shards}
    wanted = (ShardFile(name, rank, size) for name, size in sorted(expected) for rank in range(size))
    return next((str(shard) for shard in chain(shards, wanted) if str(shard) not in manifest.files), None)

"""The one reader of checkpoints: nothing of a checkpoint is used before all of it has been validated."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from phalanx.train.checkpoint.contents import Sets, find_fault, parse_facts
from phalanx.train.checkpoint.manifest import FACTS, Manifest, check, damaged, decode
from phalanx.train.checkpoint.shard_files import Tensors, list_shards
from phalanx.train.checkpoint.tensor_file import TENSORS, read_tensors


class Content(NamedTuple):
    """All that is in a valid checkpoint. Tensors are mapped from the files; ``sets`` has them by set and by file."""

    manifest: Manifest
    facts: Mapping[str, Any]  # Any: what JSON can hold has no better type
    sets: Sets


def read(path: Path) -> Content:
    """Return what is in a checkpoint, or raise a ConfigError that names the file and says what is wrong with it.

    First come the names, kinds, sizes and hashes of the files, then the facts, then types and shapes of all tensors.
    """
    manifest = check(path)
    facts = decode(path, FACTS, dict[str, Any])
    try:
        parsed = parse_facts(facts)
    except msgspec.ValidationError as error:
        raise damaged(path, f"{FACTS} is not complete: {error}") from error
    sets = read_sets(path, manifest.files)
    if fault := find_fault(manifest.step, parsed, sets, manifest.tensors):
        raise damaged(path, fault)
    return Content(manifest, facts, sets)


def read_sets(path: Path, files: Iterable[str]) -> Sets:
    """Return the tensors of these files of a checkpoint. They must be files of tensors, and are not checked further."""
    names = [file for file in files if file != FACTS]
    shards = {str(shard): shard.name for shard in list_shards(names)}
    sets: dict[str, dict[str, Tensors]] = {}
    for file in names:
        try:
            tensors = read_tensors(path / file)
        except ValueError as error:
            raise damaged(path, f"{file} {error}") from error
        sets.setdefault(shards.get(file, file.removesuffix(TENSORS)), {})[file] = tensors
    return sets

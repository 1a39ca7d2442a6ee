"""The one reader of checkpoints: nothing of a checkpoint is used before all of it has been validated."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from phalanx.checkpoint.contents import Sets, find_changes, find_misfits
from phalanx.checkpoint.manifest import FACTS, Manifest, check, damaged, decode
from phalanx.checkpoint.shard_files import Tensors, list_shards
from phalanx.checkpoint.tensor_file import TENSORS, read_tensors


class Content(NamedTuple):
    """All that is in a valid checkpoint. Tensors are mapped from the files; ``sets`` has them by set and by file."""

    manifest: Manifest
    facts: Mapping[str, Any]  # Any: what JSON can hold has no better type
    sets: Sets


FindFault = Callable[[int, Mapping[str, Any], Sets], str | None]
"""Returns what is wrong with the tensors of a checkpoint of that step and with these facts, or None."""


def read(path: Path, find_fault: FindFault = lambda *_: None) -> Content:
    """Return what is in a checkpoint, or raise a ConfigError that names the file and says what is wrong with it.

    First come the names, kinds, sizes and hashes of the files, then types and shapes of all tensors, and what
    ``find_fault`` says. It may raise ValidationError if the facts are not complete.
    """
    manifest = check(path)
    facts = decode(path, FACTS, dict[str, Any])
    sets = read_sets(path, manifest.files)
    try:
        fault = next(find_misfits(sets), None) or find_fault(manifest.step, facts, sets)
    except msgspec.ValidationError as error:
        raise damaged(path, f"{FACTS} is not complete: {error}") from error
    if fault := fault or next(find_changes(sets, manifest.tensors), None):
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

"""Hostile checkpoints: changes of a valid one of ``phalanx train``, most of them with hashes that are right again."""

import json
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from phalanx.testing.hostile.files import HostileFile, not_files
from phalanx.testing.hostile.tensors import (
    MANIFEST,
    Json,
    RawTensors,
    StoredTensor,
    read_tensors,
    repair_hashes,
    rewrite_json,
    rewrite_tensors,
)

_FACTS, _MODEL, _OPTIMIZER = "facts.json", "model.safetensors", "optimizer"
_NESTED = b"[" * 5_000 + b"]" * 5_000
_ODD: Sequence[Json] = (None, True, -1, 0.5, 2**63, 2**64, "x", "", [], {}, [[]], {"x": 1})
_NAMES = (
    *("../outside.safetensors", "/etc/passwd", "/dev/zero", "a/b.safetensors", "..", ".", "", "x.txt", MANIFEST),
    *("\0.safetensors", "\n.safetensors", "\x1b[2J.safetensors", f"{'x' * 5_000}.safetensors", "x.SAFETENSORS"),
    *(f"optimizer.{'9' * 5_000}-of-2.safetensors", "optimizer.0-of-999999999.safetensors", "extra.safetensors"),
)

Change = Callable[[Path], None]
JsonChange = Callable[[Json], Json]
TensorChange = Callable[[dict[str, StoredTensor]], dict[str, StoredTensor]]


def hostile_checkpoints() -> list[HostileFile]:
    """Return changes of a valid checkpoint after which it should be refused. ``make`` takes the checkpoint's directory.

    The checkpoint is one of ``phalanx train``, of one worker or of several that share the optimizer.
    """
    changes: list[tuple[str, Change]] = [
        *_damage_files(),
        *((f"manifest: {name}", partial(_change_manifest, change=each)) for name, each in _change_fields()),
        *((f"manifest: {name}", partial(_write_manifest, content=each)) for name, each in _TEXTS.items()),
        *((f"facts: {name}", partial(_change_facts, change=each)) for name, each in _change_each_fact()),
        *((f"facts: {name}", partial(_write_facts, content=each)) for name, each in _TEXTS.items()),
        *_change_files(),
        ("the optimizer has counted another number of steps", _miscount),
        ("the optimizer is the model", partial(_copy, source=_MODEL, target=_OPTIMIZER)),
        ("the model is the optimizer", partial(_copy, source=_OPTIMIZER, target=_MODEL)),
        ("the last shard is a copy of the first", _repeat_shard),
        ("the optimizer has no state of a parameter", _forget_parameter),
    ]
    return [HostileFile(name, make) for name, make in changes]


def _damage_files() -> Iterator[tuple[str, Change]]:
    ways = [
        *not_files(),
        HostileFile("empty", _empty),
        HostileFile("truncated", _truncate),
        HostileFile("altered", _alter),
    ]
    for file in (MANIFEST, _FACTS, _MODEL, _OPTIMIZER):
        for way in ways:
            yield HostileFile(f"{file} is {way.name}", partial(_damage, file=file, make=way.make))


def _change_files() -> Iterator[tuple[str, Change]]:
    for file in (_MODEL, _OPTIMIZER):
        for name, raw in _HEADERS.items():
            yield f"{file} has {name}", partial(_write_header, file=file, raw=raw)
        for name, change in _TENSORS.items():
            yield f"{file} has {name}", partial(_change_tensors, file=file, change=change)


def _change_fields() -> Iterator[tuple[str, JsonChange]]:
    for field in ("format", "step", "files", "tensors"):
        yield f"no {field}", partial(_without, name=field)
        for odd in _ODD:
            yield f"{field} is {odd!r}", partial(_with, fields={field: odd})
    for field in ("sha256", "size_bytes"):
        for odd in _ODD:
            yield f"{field} is {odd!r}", _within("files", _within(_MODEL, partial(_with, fields={field: odd})))
    for name in _NAMES:
        yield f"a file called {name[:40]!r}", _within("files", partial(_with, fields={name: _ENTRY}))
    yield "another step", lambda found: {**found, "step": found["step"] + 1}
    yield "one field more", partial(_with, fields={"more": 1})
    yield "a list", lambda found: [found]
    yield "no facts", _within("files", partial(_without, name=_FACTS))
    yield "no model", _within("files", partial(_without, name=_MODEL))


def _change_each_fact() -> Iterator[tuple[str, JsonChange]]:
    right: Mapping[str, tuple[type, ...]] = {
        "corpus": (str,),
        "is_bytes": (bool,),
        "best": (type(None),),
        "vocabulary": (),
        "model": (),
    }
    for field, kinds in right.items():
        yield f"no {field}", partial(_without, name=field)
        for odd in _ODD:
            if not isinstance(odd, kinds):
                yield f"{field} is {odd!r}", partial(_with, fields={field: odd})
    for field in ("layers", "width", "heads", "hidden"):
        for odd in (*_ODD, 10**9):
            yield f"model.{field} is {odd!r}", _within("model", partial(_with, fields={field: odd}))
    yield "a layer more", _within("model", lambda model: {**model, "layers": model["layers"] + 1})
    yield "another vocabulary", lambda found: {**found, "vocabulary": found["vocabulary"] + 64}
    yield "one field more", partial(_with, fields={"more": 1})
    yield "a list", lambda found: [found]


_ENTRY = {"sha256": "0" * 64, "size_bytes": 0}
_TEXTS = {"nested": _NESTED, "a number of 5,000 digits": b'{"step": ' + b"9" * 5_000 + b"}", "not text": b'{"\xff": 1}'}
_ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def _header(**fields: Json) -> bytes:
    return json.dumps({"x": {**_ONE, **fields}}).encode()


_HEADERS: Mapping[str, RawTensors] = {
    "no header": RawTensors(b"", length=0),
    "a header longer than the file": RawTensors(b"{}", length=2**31),
    "a header of 2**63 bytes": RawTensors(b"{}", length=2**63),
    "a header that is not JSON": RawTensors(b"{{}"),
    "a header that is not text": RawTensors(b'{"\xff": 1}'),
    "a nested header": RawTensors(b'{"x": ' + _NESTED + b"}"),
    "a list as header": RawTensors(b"[]"),
    "bytes that belong to no tensor": RawTensors(b"{}", b"left over"),
    "a tensor without type": RawTensors(_header(dtype=None), b"...."),
    "a tensor of an unknown type": RawTensors(_header(dtype="X9"), b"...."),
    "a tensor of eight bits": RawTensors(_header(dtype="F8_E5M2", shape=[4]), b"...."),
    "a negative shape": RawTensors(_header(shape=[-1]), b"...."),
    "a shape of 2**62 twice": RawTensors(_header(shape=[2**62, 2**62]), b"...."),
    "an empty shape of 2**63": RawTensors(_header(shape=[2**63, 0], data_offsets=[0, 0])),
    "an empty shape of 2**62 twice": RawTensors(_header(shape=[0, 2**62, 2**62], data_offsets=[0, 0])),
    "5,000 dimensions": RawTensors(_header(shape=[1] * 5_000), b"...."),
    "offsets beyond the file": RawTensors(_header(shape=[2**40], data_offsets=[0, 2**42]), b"...."),
    "offsets the wrong way round": RawTensors(_header(data_offsets=[4, 0]), b"...."),
    "tensors that overlap": RawTensors(json.dumps({"a": _ONE, "b": _ONE}).encode(), b"...."),
}


def _rename(found: dict[str, StoredTensor], ending: str) -> dict[str, StoredTensor]:
    first, *others = found
    return {first.partition("[")[0] + ending: found[first], **{name: found[name] for name in others}}


def _recast(found: dict[str, StoredTensor], **fields: Json) -> dict[str, StoredTensor]:
    first = next(iter(found))
    return {**found, first: found[first]._replace(**fields)}


_TENSORS: Mapping[str, TensorChange] = {
    "no tensors": lambda _: {},
    "no first tensor": lambda found: _without(found, next(iter(found))),
    "no last tensor": lambda found: _without(found, list(found)[-1]),
    "one tensor more": lambda found: {**found, "more.exp_avg": next(iter(found.values()))},
    "a tensor of another name": partial(_rename, ending="x"),
    "a name with a line break": partial(_rename, ending="\n\x1b[2J"),
    "a name of 50,000 letters": partial(_rename, ending="x" * 50_000),
    "a span of 5,000 digits": partial(_rename, ending=f"[0:{'9' * 5_000}]"),
    "a span of one element": partial(_rename, ending="[1:2]"),
    "a span in other digits": partial(_rename, ending="[\u0660:\u0668]"),
    "whole numbers": partial(_recast, dtype="I32"),
    "one dimension more": lambda found: _recast(found, shape=[*next(iter(found.values())).shape, 1]),
}


def _change_manifest(path: Path, change: JsonChange) -> None:
    rewrite_json(path / MANIFEST, change)


def _write_manifest(path: Path, content: bytes) -> None:
    (path / MANIFEST).write_bytes(content)


def _change_facts(path: Path, change: JsonChange) -> None:
    rewrite_json(path / _FACTS, change)
    repair_hashes(path)


def _write_facts(path: Path, content: bytes) -> None:
    (path / _FACTS).write_bytes(content)
    repair_hashes(path)


def _write_header(path: Path, file: str, raw: RawTensors) -> None:
    raw.write(_find(path, file))
    repair_hashes(path)


def _change_tensors(path: Path, file: str, change: TensorChange) -> None:
    rewrite_tensors(_find(path, file), change)
    repair_hashes(path)


def _miscount(path: Path) -> None:
    for file in sorted(path.glob(f"{_OPTIMIZER}*")):
        rewrite_tensors(file, _count_a_million)
    repair_hashes(path)


def _count_a_million(found: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    data = struct.pack("<f", 1e6)
    return {name: each._replace(data=data) if name.endswith(".step") else each for name, each in found.items()}


def _copy(path: Path, source: str, target: str) -> None:
    shutil.copyfile(_find(path, source), _find(path, target))
    repair_hashes(path)


def _repeat_shard(path: Path) -> None:
    """Copy a shard over another. If there is only one, it is emptied."""
    first, *others = sorted(path.glob(f"{_OPTIMIZER}*"))
    if others:
        shutil.copyfile(first, others[-1])
    else:
        rewrite_tensors(first, lambda _: {})
    repair_hashes(path)


def _forget_parameter(path: Path) -> None:
    """Remove all state of a parameter from all shards."""
    files = sorted(path.glob(f"{_OPTIMIZER}*"))
    forgotten = next(iter(read_tensors(files[0]))).rpartition(".")[0] + "."
    for file in files:
        rewrite_tensors(file, lambda found: {name: found[name] for name in found if not name.startswith(forgotten)})
    repair_hashes(path)


def _damage(path: Path, file: str, make: Change) -> None:
    make(_find(path, file))


def _find(path: Path, name: str) -> Path:
    """Return the file of a checkpoint that is called so, or that begins so: the first shard, or the only one."""
    return min(each for each in path.iterdir() if each.name.startswith(name))


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _alter(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x40
    file.write_bytes(content)


def _with(found: Json, fields: Mapping[str, Json]) -> Json:
    return {**found, **fields}


def _without(found: Json, name: str) -> Json:
    return {each: value for each, value in found.items() if each != name}


def _within(name: str, change: JsonChange) -> JsonChange:
    """Return a change of the field with this name."""
    return lambda found: {**found, name: change(found[name])}

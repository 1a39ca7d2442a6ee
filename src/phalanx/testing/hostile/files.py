"""Hostile configs, logs and data, and what can be at a path instead of a file."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

_HUGE_BYTES = 2**42
_NESTED = 5_000
_DIGITS = "9" * 5_000


class HostileFile(NamedTuple):
    """Something that a program should refuse: its ``name`` says what is wrong, and ``make`` puts it at a path."""

    name: str
    make: Callable[[Path], None]


def not_files() -> list[HostileFile]:
    """Return what can be at a path instead of a readable file. Whatever is at the path is replaced."""
    return [
        HostileFile("missing", _remove),
        HostileFile("a pipe", _replacing(os.mkfifo)),
        HostileFile("a device without end", _replacing(lambda path: path.symlink_to("/dev/zero"))),
        HostileFile("a link to itself", _replacing(lambda path: path.symlink_to(path.name))),
        HostileFile("a directory", _replacing(Path.mkdir)),
        HostileFile("a hole of 4 TiB", _replacing(_write_hole)),
    ]


def hostile_configs() -> list[HostileFile]:
    """Return files that are no config."""
    settings = [setting for setting in hostile_settings() if setting.startswith(_SECTIONS) and setting.isprintable()]
    contents = {**_CONFIGS, **{f"config {setting[:40]!r}": _format(setting) for setting in settings}}
    return [*not_files(), *(HostileFile(name, partial(_write, content=each)) for name, each in contents.items())]


def hostile_settings() -> list[str]:
    """Return settings, as ``--set`` takes them, that no run can have."""
    return [
        *("", "=", "model", "model=5", "train.lr", "nothing.at.all=1", "=5", "model.layers.x=1", "model.=1"),
        *("model.layers=9223372036854775807", "model.width=1000000000", "model.heads=1000000000", "model.hidden=1e9"),
        *(f"train.seed={_DIGITS}", f"train.seed=0x{'f' * 5_000}", f"train.lr={_DIGITS}", "train.seed=-1"),
        f"data.path={'[' * _NESTED}{']' * _NESTED}",
        f"data.path={'x' * 100_000}",
        *('data.path="a\\u0000b"', 'data.path="a\\nb"', 'run.directory="a\\u0000b"', 'run.directory="\\u001b[2J"'),
        *("train.lr=1\ntrain.steps=2", "train.lr=0.1\r", "data.path=a\0b", "data.path=\udcff"),
        *("train.lr=nan", "train.lr=inf", "train.lr=1979-05-27", "train.lr=[]", "train.lr={}", "train.lr=''"),
        *("train.batch=1048576000", "train.lanes=10000000", "train.accumulate=999999999999", "run.workers=1000000"),
        *("train.steps=99999999999999999999", "train.steps=0", "data.context=9999999999", "data.held_out=1e-400"),
        *("run.transport=[]", "run.transport=carrier-pigeon", "run.device={}", "run.zero=maybe", "run.keep=0"),
    ]


def hostile_logs() -> list[HostileFile]:
    """Return changes of a valid ``steps.jsonl`` that leave no log of a run."""
    odd = [("step", -1), ("step", 2**80), ("seconds", -1), ("tokens", 10**400), ("loss", None)]
    return [
        *not_files(),
        *(HostileFile(f"a line: {name}", partial(_put_first, line=line)) for name, line in _LOG_LINES.items()),
        *(
            HostileFile(f"{field} is {str(value)[:20]}", partial(_change_first, field=field, value=value))
            for field, value in odd
        ),
        HostileFile("every step twice", _repeat),
    ]


def hostile_data() -> list[HostileFile]:
    """Return what ``data.path`` should not name."""
    return [
        *(each for each in not_files() if each.name != "a hole of 4 TiB"),  # which is a text, of zeros
        HostileFile("nothing", partial(_write, content=b"")),
        HostileFile("a folder with a hole of 4 TiB", _make_folder),
    ]


_SECTIONS = ("model.", "data.", "train.", "run.")
_CONFIGS = {
    "not text": b"\xff\xfe\0",
    "a null": b"[train]\nlr = 0.1\0\n",
    "not TOML": b"[train\n",
    "nested too deeply": b"x = " + b"[" * _NESTED + b"]" * _NESTED,
    "a number of 5,000 digits": f"[train]\nseed = {_DIGITS}\n".encode(),
    "a key twice": b"[train]\nlr = 0.1\nlr = 0.2\n",
    "a section twice": b"[train]\nlr = 0.1\n[train]\nsteps = 2\n",
    "a section that is a list": b"[[train]]\nlr = 0.1\n",
    "a section that is a number": b"train = 5\n",
    "a key with a line break": b'[train]\n"l\\nr" = 0.1\n',
    "a section with control characters": b'["\\u001b[2J"]\nlr = 0.1\n',
    "a key of 100,000 letters": b"[train]\n" + b"x" * 100_000 + b" = 1\n",
    "more than a megabyte": b"#" * 2**21,
}
_LOG_LINES = {
    "no JSON": b"step 1\n",
    "a null": b"\0\n",
    "not text": b"\xff\n",
    "another type": b"[]\n",
    "no fields": b"{}\n",
    "nested too deeply": b"[" * _NESTED + b"]" * _NESTED + b"\n",
    "a line without end": b"x" * 2**20,
}


def _format(setting: str) -> bytes:
    """Return TOML that sets a key."""
    key, _, value = setting.partition("=")
    section, _, name = key.partition(".")
    return f"[{section}]\n{name} = {value}\n".encode()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _replacing(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        _remove(path)
        make(path)

    return replace


def _write_hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(_HUGE_BYTES)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _make_folder(path: Path) -> None:
    path.mkdir()
    _write_hole(path / "text.txt")


def _repeat(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)


def _put_first(path: Path, line: bytes) -> None:
    path.write_bytes(line + path.read_bytes())


def _change_first(path: Path, field: str, value: object) -> None:
    first, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps({**json.loads(first), field: value}).encode() + b"\n" + rest)

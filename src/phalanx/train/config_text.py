"""Reading and writing configs as TOML and as single settings."""

import json
import tomllib
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from phalanx.errors import ConfigError
from phalanx.train.config import SECTIONS, Config, DataConfig, ModelConfig, RunConfig, TrainConfig, fields_of

_MOST_BITS = 64
_MOST_LETTERS = 100


class Key(NamedTuple):
    """One key of a config. ``default`` is TOML, or empty if the key is left out by default."""

    name: str
    type: str
    default: str
    description: str


def parse_config(text: str, sets: Sequence[str] = (), source: str = "the config") -> Config:
    """Return the config that TOML describes, changed by settings such as ``train.lr=3e-4``. The last one wins.

    ``source`` is where the text is from. The default warm-up is never longer than the run.
    """
    given = dict(_read_toml(text, source)) | dict(_read_setting(each) for each in sets)
    values: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}  # Any: of the type that the key has
    for name, value in given.items():
        section, _, key = name.partition(".")
        values[section][key] = _convert(name, value)
    default = TrainConfig()
    values["train"].setdefault("warmup", min(default.warmup, values["train"].get("steps", default.steps)))
    return Config(
        model=ModelConfig(**values["model"]),
        data=DataConfig(**values["data"]),
        train=TrainConfig(**values["train"]),
        run=RunConfig(**values["run"]),
    )


def format_config(config: Config) -> str:
    """Return TOML with every key, which ``parse_config`` reads back as an equal config."""
    tables = []
    for name, section in SECTIONS.items():
        values = {key: getattr(getattr(config, name), key) for key, _, _ in fields_of(section)}
        lines = [f"{key} = {_format(value)}" for key, value in values.items() if value is not None]
        tables.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(tables) + "\n"


def explain_config(config: Config) -> str:
    """Return TOML with every key and a comment that explains it. Keys without a value are commented out."""
    keys = {key.name: key for key in describe_keys()}
    tables = []
    for name, section in SECTIONS.items():
        lines = [f"[{name}]"]
        for key, _, _ in fields_of(section):
            value = getattr(getattr(config, name), key)
            lines.append(f"# {keys[f'{name}.{key}'].description}")
            lines.append(f"# {key} =" if value is None else f"{key} = {_format(value)}")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def describe_keys() -> list[Key]:
    """Return all keys, in order."""
    return [
        Key(
            name=f"{name}.{key}",
            type=_say_type(kind),
            default="" if (default := getattr(section(), key)) is None else _format(default),
            description=meta.description or "",
        )
        for name, section in SECTIONS.items()
        for key, kind, meta in fields_of(section)
    ]


_KINDS = {f"{name}.{key}": kind for name, section in SECTIONS.items() for key, kind, _ in fields_of(section)}


def _read_toml(text: str, source: str) -> Iterator[tuple[str, object]]:
    try:
        tables = tomllib.loads(text)
    except RecursionError as error:
        raise ConfigError(f"{source} is not a config: it is nested too deeply") from error
    except ValueError as error:  # not only bad TOML: Python refuses numbers of thousands of digits
        raise ConfigError(f"{source} is not TOML: {error}") from error
    for section, table in tables.items():
        if section not in SECTIONS:
            raise _unknown(section)
        if not isinstance(table, dict):
            raise ConfigError(f"{section} is a section, not a key: write [{section}], and its keys below it")
        yield from ((f"{section}.{key}", value) for key, value in table.items())


def _read_setting(text: str) -> tuple[str, object]:
    name, equals, value = (each.strip() for each in text.partition("="))
    if not equals or not text.isprintable():
        raise ConfigError(f"{_show(text)} sets nothing: write section.key=value in one line, such as train.lr=3e-4")
    if name in SECTIONS:
        raise ConfigError(f"{name} is a section, not a key: write {name}.key=value; --show-config lists the keys")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return name, value


def _convert(name: str, value: object) -> object:
    if name not in _KINDS:
        raise _unknown(name)
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ConfigError(f"{name} must be a number that fits into {_MOST_BITS} bits")
    try:
        return msgspec.convert(value, _KINDS[name])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name} must be {_say_type(_KINDS[name])}, not {_show(value)}") from error


def _unknown(name: str) -> ConfigError:
    known = {each.rpartition(".")[2]: each for each in [*SECTIONS, *_KINDS]}
    near = get_close_matches(name[:_MOST_LETTERS].rpartition(".")[2], known, n=1)
    hint = f"did you mean {known[near[0]]}?" if near else f"the sections are {', '.join(SECTIONS)}"
    shown = name if name.isprintable() and len(name) <= _MOST_LETTERS else _show(name)
    return ConfigError(f"a config has no {shown}: {hint}")


def _show(value: object) -> str:
    """Return a value as Python writes it, all on one line and not all of a long one."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or brackets in brackets
        return "that"
    return shown if len(shown) <= _MOST_LETTERS else f"{shown[:_MOST_LETTERS]} ..."


def _say_type(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(each.value for each in kind)}"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "a text in quotes")


def _format(value: object) -> str:
    if isinstance(value, Enum):
        value = value.value
    # TOML writes numbers, booleans and strings as JSON does, except that it refuses a bare DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

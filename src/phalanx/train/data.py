"""The text to learn: reading it as tokens, and cutting it into sequences."""

import hashlib
import math
import mmap
import os
import stat
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phalanx.buffers import slices
from phalanx.errors import ConfigError
from phalanx.train.config import DataConfig
from phalanx.train.machine import memory_bytes

_RUN = 2**20
_EDGE = 2**12
_TEXT = frozenset({".txt", ".md", ".py"})
_NOT_ITS_OWN = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})

Tokens = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """The text cut into windows of ``context`` tokens. Each comes with the token after it, which is its last target."""

    tokens: Tokens
    context: int

    def __len__(self) -> int:
        return max(len(self.tokens) - 1, 0) // self.context

    def batch(self, numbers: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the sequences with these numbers as int64 of shape (numbers, context + 1)."""
        rows = np.empty((len(numbers), self.context + 1), dtype=np.int64)
        for row, number in zip(rows, numbers, strict=True):
            if not 0 <= number < len(self):
                raise ConfigError(f"there is no sequence {number} of {len(self)}: they are numbered from 0")
            row[:] = self.tokens[number * self.context : (number + 1) * self.context + 1]
        return rows

    def read_ahead(self, numbers: Callable[[], Sequence[int]]) -> None:
        """Ask the system to read the sequences with these numbers from the disk soon, if the text is a mapped file.

        This does not wait for the disk. ``batch`` would, at the first use of each page.
        """
        if (mapped := _find_mapping(self.tokens)) is None:
            return
        begin_bytes = self.tokens.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
        for number in numbers():
            window = self.tokens[number * self.context : (number + 1) * self.context + 1]
            start_bytes = begin_bytes + number * self.context * self.tokens.itemsize
            aside_bytes = start_bytes % mmap.PAGESIZE  # the system takes whole pages
            mapped.madvise(mmap.MADV_WILLNEED, start_bytes - aside_bytes, window.nbytes + aside_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """A text in two parts: one for training, and its end, which is held out for evaluation."""

    name: str
    tokens: Tokens
    vocabulary: int
    train: Sequences
    held_out: Sequences

    @property
    def is_bytes(self) -> bool:
        """Whether tokens are the bytes of a text."""
        return self.tokens.dtype == np.uint8

    def describe(self) -> str:
        """Return a line that describes the text."""
        kind = "bytes" if self.is_bytes else f"tokens of {self.vocabulary:,}"
        return (
            f"{self.name}: {len(self.tokens):,} {kind}, in sequences of {self.train.context}: "
            f"{len(self.train):,} for training, {len(self.held_out):,} held out"
        )

    def unigram_entropy(self) -> float:
        """Return the loss, in nats per token, of a model that knows only how often each held-out token occurs."""
        counts = np.zeros(self.vocabulary, dtype=np.int64)
        for run in _in_runs(self.held_out.tokens):
            counts += np.bincount(run, minlength=self.vocabulary)
        chances = counts[counts > 0] / counts.sum()
        return math.fsum(-chances * np.log(chances))

    def fingerprint(self) -> str:
        """Return a short hash of the type, the length and both ends of the text."""
        facts = f"{self.tokens.dtype} {len(self.tokens)} ".encode()
        ends = self.tokens[:_EDGE].tobytes() + self.tokens[-_EDGE:].tobytes()
        return hashlib.blake2b(facts + ends, digest_size=8).hexdigest()


def open_corpus(data: DataConfig) -> Corpus:
    """Return the text that ``data`` names. A single file stays on the disk and is mapped."""
    name = "the Python standard library" if data.path is None else data.path
    try:
        tokens = _read_library() if data.path is None else _read(Path(data.path))
    except OSError as error:
        raise ConfigError(
            f"cannot read {error.filename or name}: {error.strerror}; fix that or change data.path"
        ) from error
    if not len(tokens):
        raise ConfigError(f"there is no text in {name}: put some there or change data.path")
    cut = len(tokens) - int(len(tokens) * data.held_out)
    train, held_out = Sequences(tokens[:cut], data.context), Sequences(tokens[cut:], data.context)
    for words, part in (("training", train), ("held-out", held_out)):
        if not len(part):
            raise ConfigError(
                f"the {words} part of {name} has {len(part.tokens)} tokens and a sequence needs {data.context + 1}: "
                "choose a longer text, a smaller data.context or another data.held_out"
            )
    return Corpus(name=name, tokens=tokens, vocabulary=_vocabulary(tokens), train=train, held_out=held_out)


def _read(path: Path) -> Tokens:
    try:
        found = path.stat()
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}: change data.path") from None
    if stat.S_ISDIR(found.st_mode):
        files = (file for file in _list_files(path) if not _is_hidden(file.relative_to(path)))
        return _join(file for file in files if file.is_file() and _is_text(file))
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} is neither a file nor a folder: change data.path")
    size_bytes = found.st_size
    is_tokens = path.suffix == ".bin"
    if is_tokens and size_bytes % 2:
        raise ConfigError(
            f"{path} has {size_bytes} bytes, which is not a whole number of uint16 tokens: write it again, or rename "
            "it if it is text"
        )
    kind = np.dtype("<u2") if is_tokens else np.dtype(np.uint8)
    # An empty file cannot be mapped.
    return np.memmap(path, kind, mode="r") if size_bytes else np.empty(0, kind)


def _read_library() -> Tokens:
    root = Path(sysconfig.get_path("stdlib"))
    files = (file for file in _list_files(root) if file.suffix == ".py")
    return _join(file for file in files if _NOT_ITS_OWN.isdisjoint(file.relative_to(root).parts))


def _list_files(root: Path) -> Iterator[Path]:
    """Yield all files below a folder. A folder that cannot be read is an OSError: ``rglob`` would leave it out."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(root, onerror=refuse):
        yield from (Path(folder, name) for name in names)


def _join(files: Iterator[Path]) -> Tokens:
    chosen = sorted(files)
    if (size_bytes := sum(file.stat().st_size for file in chosen)) > memory_bytes():
        words = f"the {len(chosen)} files of the data have {size_bytes / 2**30:,.0f} GiB, more than the memory here"
        raise ConfigError(f"{words}: write them into one file, which is mapped and not read")
    return np.frombuffer(b"".join(file.read_bytes() for file in chosen), dtype=np.uint8)


def _find_mapping(tokens: Tokens) -> mmap.mmap | None:
    """Return the mapped file that an array shows a part of, if it does."""
    base: object = tokens
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None


def _is_hidden(file: Path) -> bool:
    return any(part.startswith(".") for part in file.parts)


def _is_text(file: Path) -> bool:
    if file.suffix in _TEXT:
        return True
    if file.suffix == ".bin":
        return False
    with file.open("rb") as opened:
        return b"\0" not in opened.read(2**10)


def _vocabulary(tokens: Tokens) -> int:
    if tokens.dtype == np.uint8:
        return 2**8
    largest = max(int(run.max()) for run in _in_runs(tokens))
    return -(-(largest + 1) // 64) * 64


def _in_runs(tokens: Tokens) -> Iterator[Tokens]:
    return (tokens[run] for run in slices(slice(0, len(tokens)), _RUN))

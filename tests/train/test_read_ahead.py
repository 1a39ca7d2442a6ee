"""Sequences of the next step that come from the disk before they are needed."""

import ctypes
import mmap
import os
import time
from dataclasses import replace

import numpy as np
import pytest
from tiny import CPU, make_config

from phalanx.train.data import Sequences, open_corpus
from phalanx.train.loop import LaneBatches

LIMIT_S = 60.0
PAGES = 256
PAGE = mmap.PAGESIZE


def pages_in_memory(tokens):
    """The pages of a mapped file that are in memory."""
    state = (ctypes.c_ubyte * PAGES)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(tokens.ctypes.data), ctypes.c_size_t(PAGES * PAGE), state) == 0
    return {page for page in range(PAGES) if state[page] & 1}


@pytest.fixture
def tokens(tmp_path):
    """A mapped file, none of which is in memory."""
    path = tmp_path / "tokens.bin"
    path.write_bytes(bytes(PAGES * PAGE))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    mapped = np.memmap(path, "<u2", mode="r")
    if pages_in_memory(mapped):
        pytest.skip("the file system keeps files in memory")
    return mapped


@pytest.mark.parametrize(
    ("first", "number", "expected"), [(0, 0, {0}), (0, 3, {3, 4}), (PAGE, 200, {202, 203})], ids=str
)
def test_the_pages_of_a_sequence_are_read_and_not_the_whole_file(tokens, first, number, expected):
    context = PAGE // 2 + (1 if number == 3 else 0)  # tokens of two bytes
    sequences = Sequences(tokens[first:], context)

    sequences.read_ahead(lambda: [number])

    end = time.monotonic() + LIMIT_S
    while not expected <= (found := pages_in_memory(tokens)):
        assert time.monotonic() < end, f"{found} are in memory, not {expected}"
        os.sched_yield()
    assert len(found) < PAGES // 2


def test_text_that_is_in_memory_is_not_read_ahead():
    asked = []

    Sequences(np.zeros(100, np.uint8), 4).read_ahead(lambda: asked.append(True) or [0])

    assert asked == []


def test_a_lane_reads_ahead_what_it_will_need_in_the_next_step(tmp_path):
    config = make_config(tmp_path)
    corpus = open_corpus(config.data)
    asked = []

    class Noting(Sequences):
        def read_ahead(self, numbers):
            asked.append(numbers())

    noting = replace(corpus, train=Noting(corpus.train.tokens, corpus.train.context))
    lanes = LaneBatches(config, noting, CPU)

    lanes.batches(step=3, lane=1)

    assert asked == [lanes.samples(4, 1)]

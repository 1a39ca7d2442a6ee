"""The journal under torn writes, flipped bits, full disks, kills, and a second coordinator."""

import errno
import os
import resource
import signal
import stat
import struct
import zlib

import pytest

from forking import fork
from phalanx.coordinator.journal import Journal
from phalanx.coordinator.record import Committed, Ended, Formed, Past, recall
from phalanx.errors import ConfigError

HEADER = b"phalanx journal 1\n"
LINES = [Formed(1, 0, 8, ("a", "b")), Committed(1, 0, b"\x00\xff", 0.5), Committed(1, 1, b"d1", None), Ended("why")]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


def write(path, lines):
    """Append lines; what the file then holds, and where each line ends."""
    ends = []
    with Journal(path) as journal:
        for line in lines:
            journal.append(line)
            ends.append(path.stat().st_size)
    return path.read_bytes(), ends


def reopen(path):
    with Journal(path) as journal:
        return journal.past


# Writing and reading


def test_what_was_appended_is_the_past_of_who_opens_it_next(path):
    write(path, LINES[:2])
    write(path, LINES[2:])

    assert reopen(path) == recall(LINES)


def test_a_new_journal_has_no_past(path):
    assert reopen(path) == Past()


def test_a_line_is_its_checksum_and_its_text(path):
    data, _ = write(path, [Ended("why")])

    text = b'{"line":"Ended","words":"why"}'
    assert data == HEADER + b"%08x %s\n" % (zlib.crc32(text), text)


def test_nobody_else_may_read_it(path):
    write(path, [])

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_closing_twice_is_harmless(path):
    journal = Journal(path)

    journal.close()
    journal.close()

    assert reopen(path) == Past()


# What cannot be a journal


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing/journal", "there is no folder {folder}/missing for the journal: make it, or name another"),
        ("folder", "cannot use {folder}/folder as a journal: Is a directory; name another file"),
        ("pipe", "cannot use {folder}/pipe as a journal: Illegal seek; name another file"),
        ("notes.txt", "{folder}/notes.txt is not a journal of this version of Phalanx: name another file"),
        ("newer", "{folder}/newer is not a journal of this version of Phalanx: name another file"),
    ],
)
def test_what_cannot_be_a_journal_is_refused_and_left_alone(tmp_path, name, words):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "notes.txt").write_text("buy milk")
    (tmp_path / "newer").write_bytes(HEADER.replace(b"1", b"2"))

    with pytest.raises(ConfigError) as caught:
        Journal(tmp_path / name)

    assert str(caught.value) == words.format(folder=tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "buy milk"


def test_a_second_coordinator_is_refused_until_the_first_is_gone(path):
    with Journal(path) as first:
        with pytest.raises(ConfigError) as caught:
            Journal(path)
        first.append(LINES[0])

    assert str(caught.value) == f"another coordinator writes the journal {path}: stop it, or name another file"
    assert reopen(path) == recall(LINES[:1])


# Damage


def test_a_line_torn_at_any_byte_is_cut_off_and_the_others_stay(path):
    data, ends = write(path, LINES)

    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        whole = [line for line, end in zip(LINES, ends, strict=True) if end <= size]

        after, _ = write(path, [Ended("later")])

        assert reopen(path) == recall([*whole, Ended("later")])
        assert after.startswith(data[: max([len(HEADER), *(end for end in ends if end <= size)])])


def test_a_flipped_bit_is_noticed_unless_it_is_in_what_a_crash_may_have_torn(path):
    data, ends = write(path, LINES)

    for place in range(len(data)):
        for bit in (0, 5):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)

            try:
                past = reopen(path)
            except ConfigError:
                assert place < ends[-2], "what follows the last line but one may be torn"
                assert path.read_bytes() == damaged, "what is refused is left alone"
            else:
                # Without its end, the last line but one is one with the last.
                assert place >= ends[-2] - 1
                assert past == recall(LINES[:-1] if place >= ends[-2] else LINES[:-2])


def test_a_damaged_line_is_named(path):
    data, _ = write(path, LINES)
    path.write_bytes(data.replace(b"0.5", b"0.6"))

    with pytest.raises(ConfigError) as caught:
        Journal(path)

    words = f"line 3 of the journal {path} is altered or damaged: restore the file, or start with another one"
    assert str(caught.value) == words


@pytest.mark.parametrize("text", [b'{"line":"Unheard"}', b"[]", b"\xff", b'{"line":"Ended","words":"why","more":1}'])
def test_a_whole_line_that_means_nothing_is_refused_even_at_the_end(path, text):
    data, _ = write(path, LINES[:1])
    path.write_bytes(data + b"%08x %s\n" % (zlib.crc32(text), text))

    with pytest.raises(ConfigError, match=r"line 3 of the journal .* is altered or damaged"):
        Journal(path)


# Failing disks


def test_a_full_disk_leaves_no_half_line_and_ends_the_journal(path):
    def fill():
        with Journal(path) as journal:
            journal.append(LINES[0])
            room = path.stat().st_size + 10
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
            with pytest.raises(OSError, match="File too large"):
                journal.append(LINES[1])
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            with pytest.raises(OSError, match="an earlier line could not be written"):
                journal.append(LINES[1])

    _, status = os.waitpid(fork(fill), 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert path.read_bytes() == write(path.with_name("other"), LINES[:1])[0]


def test_a_line_that_did_not_reach_the_disk_is_no_line(path, monkeypatch):
    def fail(_):
        raise OSError(errno.EIO, "Input/output error")

    with Journal(path) as journal:
        journal.append(LINES[0])
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(OSError, match="Input/output error"):
                journal.append(LINES[1])
        with pytest.raises(OSError, match="an earlier line could not be written"):
            journal.append(LINES[1])

    assert reopen(path) == recall(LINES[:1])


@pytest.mark.parametrize("kill_after", range(1, 21))
def test_what_was_acknowledged_outlives_a_kill(path, kill_after):
    ready, acknowledge = os.pipe()

    def append_for_ever():
        with Journal(path) as journal:
            journal.append(LINES[0])
            step = 0
            while True:
                journal.append(Committed(1, step, b"digest", 0.5))
                os.write(acknowledge, struct.pack("I", step))
                step += 1

    pid = fork(append_for_ever)
    os.close(acknowledge)
    with os.fdopen(ready, "rb", buffering=0) as acknowledged:
        seen = [acknowledged.read(4) for _ in range(kill_after)]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        rest = acknowledged.read()
    (last,) = struct.unpack("I", (b"".join(seen) + rest)[-4:])

    past = reopen(path)

    assert past.step in (last + 1, last + 2)
    assert past.last.step == past.step - 1

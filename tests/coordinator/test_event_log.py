"""The file of events under torn lines, damage, full disks and successive coordinators."""

import logging
import os
import resource

import pytest

from forking import fork, wait
from phalanx.coordinator import EventLog, read_events
from phalanx.coordinator.events import CoordinatorStarted, RunEnded, WorkerCame
from phalanx.errors import ConfigError

START = CoordinatorStarted(is_restart=False, step=0)
CAME = WorkerCame(rank=None, pid=7, host="anvil")
END = RunEnded(step=3, words="all workers left it at step 3", has_halted=False)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def write(path, *events):
    with EventLog(path) as log:
        log.write(events)


def kinds(path):
    return [type(event) for event in read_events(path)]


def test_an_event_is_a_line_of_json_with_its_time_and_kind(path):
    write(path, START)

    (event,) = read_events(path)
    assert 1.7e9 < event.time < 2**33
    line = f'{{"kind":"CoordinatorStarted","time":{event.time!r},"is_restart":false,"step":0}}\n'
    assert path.read_text(encoding="utf-8") == line


def test_the_next_coordinator_appends(path):
    write(path, START, CAME)
    write(path, START, END)

    assert kinds(path) == [CoordinatorStarted, WorkerCame, CoordinatorStarted, RunEnded]


def test_a_line_that_was_cut_at_any_byte_is_not_read_and_the_next_coordinator_removes_it(path):
    write(path, START, CAME)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1

    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        assert kinds(path) == [CoordinatorStarted]
        write(path, END)
        assert kinds(path) == [CoordinatorStarted, RunEnded]


@pytest.mark.parametrize("line", [b"{}\n", b"\xff\n", b'{"kind":"Exploded"}\n', b"\n", b"[" * 100_000 + b"\n"])
def test_another_damaged_line_is_named(path, line):
    write(path, START, CAME)
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + line + second)

    with pytest.raises(ConfigError, match=rf"^line 2 of {path} is altered, damaged, or of a later release: "):
        list(read_events(path))


def test_fields_of_a_later_release_are_ignored(path):
    write(path, START)
    path.write_bytes(path.read_bytes().replace(b'"step":0', b'"step":0,"mood":"calm"'))

    assert kinds(path) == [CoordinatorStarted]


def test_what_is_no_file_is_refused_in_words_and_blocks_nobody(path, tmp_path):
    os.mkfifo(path)

    with pytest.raises(ConfigError, match=f"^cannot write events to {path}: it is not a regular file; name another"):
        EventLog(path)
    with pytest.raises(ConfigError, match=f"^cannot read {path}: it is not a regular file; are these the events"):
        list(read_events(path))
    with pytest.raises(ConfigError, match="Is a directory"):
        EventLog(tmp_path)
    with pytest.raises(ConfigError, match=f"^there is no folder {tmp_path}/none for the events: make it"):
        EventLog(tmp_path / "none" / "events.jsonl")


def test_a_full_disk_costs_events_and_one_warning_and_no_line_is_torn(path, caplog):
    def fill():
        with EventLog(path) as log:
            log.write([START])
            limit = path.stat().st_size + 20  # room for a part of a line
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            with caplog.at_level(logging.WARNING, "phalanx"):
                log.write([CAME, CAME])
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            log.write([END])
        words = (
            f"cannot write events to {path}: File too large; the run continues, but this record of it will have gaps"
        )
        assert [record.getMessage() for record in caplog.records] == [words]

    assert wait(fork(fill)) == 0

    assert kinds(path) == [CoordinatorStarted, RunEnded]


def test_closing_twice_is_harmless(path):
    log = EventLog(path)
    log.close()
    log.close()

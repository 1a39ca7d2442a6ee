import os
import subprocess
import sys
import threading

import pytest

from phalanx.cli.streams import Output, open_text

PHALANX = [sys.executable, "-c", "from phalanx.cli import main; main()"]


@pytest.fixture
def unread():
    """The end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture
def full():
    """A file that takes nothing."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


def open_stream(descriptor, *, optional=False, optional_unread=False):
    output = Output(descriptor)
    output.is_optional, output.is_optional_unread = optional, optional_unread
    return output, open_text(output, "ascii", is_line_buffered=True)


def test_a_letter_that_the_encoding_lacks_is_escaped(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        _, stream = open_stream(file.fileno())

        print("a · b", file=stream)

    assert (tmp_path / "file").read_bytes() == b"a \\xb7 b\n"


def test_output_that_is_lost_raises_once_and_is_thrown_away_from_then_on(unread):
    output, stream = open_stream(unread)

    with pytest.raises(BrokenPipeError):
        print("one", file=stream)
    print("two", file=stream)

    assert (output.is_unread, output.has_failed) == (True, True)


@pytest.mark.parametrize(("optional_unread", "is_raised"), [(True, False), (False, True)])
def test_a_command_may_want_to_end_when_nobody_reads_it_and_only_then(unread, full, optional_unread, is_raised):
    failed = []
    for descriptor in (unread, full):
        output, stream = open_stream(descriptor, optional=True, optional_unread=optional_unread)
        try:
            print("one", file=stream)
        except OSError:
            failed.append(output)

    assert [output.is_unread for output in failed] == [True] * is_raised


def test_a_descriptor_that_does_not_block_is_written_whole():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    _, stream = open_stream(writer)
    received = []
    with os.fdopen(reader, "rb") as source:
        thread = threading.Thread(target=lambda: received.append(source.read(1_000_000)))
        thread.start()

        stream.write("x" * 1_000_000)
        stream.flush()
        thread.join()

    assert len(received[0]) == 1_000_000
    os.close(writer)


def start(*arguments, **streams):
    return subprocess.run([*PHALANX, *arguments], **{"stderr": subprocess.PIPE, **streams}, text=True, check=False)


def test_a_command_that_nobody_reads_ends_quietly(unread):
    ended = start("--help", stdout=unread)

    assert (ended.returncode, ended.stderr) == (141, "")


def test_a_command_whose_output_is_lost_fails_in_one_line(full):
    ended = start("token", stdout=full)

    assert (ended.returncode, ended.stderr) == (1, "phalanx: cannot write the output: No space left on device\n")


@pytest.mark.parametrize(
    ("closed", "out", "err"), [(">&-", "", "[rank 0] 2\n"), ("2>&-", "[rank 0] 1\n", ""), ("<&- >&- 2>&-", "", "")]
)
def test_workers_run_though_streams_of_the_launcher_are_closed(tmp_path, closed, out, err):
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(1)\nprint(2, file=sys.stderr)\n", encoding="utf-8")

    ended = subprocess.run(
        ["bash", "-c", f'exec "$@" {closed}', "bash", *PHALANX, "run", "-n", "1", script],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, out, err)


def test_workers_run_though_their_output_is_lost(tmp_path, full):
    script = tmp_path / "script.py"
    script.write_text("print(1)\n", encoding="utf-8")

    ended = start("run", "-n", "1", str(script), stdout=full)

    assert (ended.returncode, ended.stderr) == (0, "phalanx: cannot write the output: No space left on device\n")

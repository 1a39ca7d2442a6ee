import io
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import ConfigError
from phalanx.launch.output import Lines, RankLogs, Tail, prefix, write_lines
from phalanx.launch.verdict import Name


@settings(deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_lines_come_out_whole_however_the_bytes_came_in(data, cuts):
    lines = Lines()
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]

    found = [line for start, stop in itertools.pairwise(bounds) for line in lines.feed(data[start:stop])]
    found += lines.end()

    assert found == data.removesuffix(b"\n").split(b"\n")[: None if data else 0]


def test_a_line_without_end_is_cut_and_not_kept():
    lines = Lines()

    found = lines.feed(b"x" * 200_000)

    assert [len(line) for line in found] == [65536] * 3
    assert lines.end() == [b"x" * (200_000 - 3 * 65536)]


def test_a_tail_keeps_the_end_and_marks_what_is_no_text():
    tail = Tail()

    tail.feed(b"a" * 100_000)
    tail.feed(b"the end\xff")

    assert len(tail.text()) == 65536
    assert tail.text().endswith("athe end\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize(
    ("rank", "size", "words"), [(2, 4, b"[rank 2] "), (2, 11, b"[rank  2] "), (10, 11, b"[rank 10] ")]
)
def test_prefixes_of_all_ranks_are_equally_wide(rank, size, words):
    assert prefix(Name("rank", rank), size, is_coloured=False) == words


def test_colour_surrounds_the_prefix_only():
    assert prefix(Name("rank", 0), 2, is_coloured=True) == b"\x1b[36m[rank 0]\x1b[0m "


def test_every_line_gets_the_prefix_and_an_end():
    stream = io.BytesIO()

    write_lines(stream, b"> ", [b"one", b"", b"two\r"])

    assert stream.getvalue() == b"> one\n> \n> two\n"


def test_every_rank_has_a_log_of_its_own_to_which_lines_are_added(tmp_path):
    for _ in range(2):
        logs = RankLogs(tmp_path / "deep" / "logs")
        logs.write(Name("worker", 1), [b"before"])
        logs.write(Name("rank", 0), [b"one\r", b"\xff"])
        logs.write(Name("rank", 0), [])

    found = {file.name: file.read_bytes() for file in (tmp_path / "deep" / "logs").iterdir()}
    assert found == {"worker-1.log": b"before\n" * 2, "rank-0.log": b"one\n\xff\n" * 2}


def test_a_log_that_cannot_be_written_is_told_once_and_a_folder_that_cannot_be_made_is_refused(tmp_path, capsys):
    logs = RankLogs(tmp_path)
    (tmp_path / "rank-0.log").mkdir()

    logs.write(Name("rank", 0), [b"one"])
    logs.write(Name("rank", 0), [b"two"])

    assert capsys.readouterr().err.count("the run goes on without logs") == 1
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="name another --log-dir"):
        RankLogs(tmp_path / "file")

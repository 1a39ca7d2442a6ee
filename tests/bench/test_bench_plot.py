"""Charts of all-reduces."""

import pytest
from matplotlib.image import imread

from phalanx.bench.all_reduce.plan import AllReduceRow
from phalanx.bench.plot import draw_all_reduces
from phalanx.errors import ConfigError


def make_row(system, ranks, size_bytes, median_s):
    return AllReduceRow(system, ranks, size_bytes, median_s, 1.0, 1.0, 10, None)


ROWS = [
    make_row(system, ranks, size, seconds)
    for ranks in (2, 4)
    for size in (4096, 2**22)
    for system, seconds in (("arena", 0.0125), ("gloo", 0.05))
]


def test_a_chart_names_every_system_time_and_size(tmp_path):
    draw_all_reduces(ROWS, tmp_path / "chart.svg", "measured here")

    words = (tmp_path / "chart.svg").read_text(encoding="utf-8")
    for word in ("Phalanx arena", "Gloo", "12.5 ms", "50.0 ms", "4 KiB, 2 ranks", "4 MiB, 4 ranks", "measured here"):
        assert f">{word}</text>" in words


def test_the_same_figures_give_the_same_file(tmp_path):
    for name in ("one.svg", "two.svg"):
        draw_all_reduces(ROWS, tmp_path / name, "measured here")

    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_png_is_transparent_so_that_it_suits_light_and_dark_pages(tmp_path):
    draw_all_reduces(ROWS, tmp_path / "chart.png", "measured here")

    assert imread(tmp_path / "chart.png")[0, 0, 3] == 0


def test_a_system_that_was_not_measured_at_a_size_is_left_out_there(tmp_path):
    draw_all_reduces(ROWS[:-1], tmp_path / "chart.svg", "measured here")

    words = (tmp_path / "chart.svg").read_text(encoding="utf-8")
    assert (words.count(">12.5 ms<"), words.count(">50.0 ms<")) == (4, 3)


@pytest.mark.parametrize(("name", "words"), [("chart.jpg", "an SVG or a PNG"), ("gone/chart.svg", "cannot write")])
def test_files_that_cannot_be_are_refused(tmp_path, name, words):
    with pytest.raises(ConfigError, match=words):
        draw_all_reduces(ROWS, tmp_path / name, "measured here")

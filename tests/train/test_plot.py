import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread
from run_records import make_step, make_steps

from phalanx.errors import ConfigError
from phalanx.train.plot import _means, draw


@pytest.fixture
def out(tmp_path):
    return tmp_path / "plot.png"


def colours(path):
    """How many points of a picture have each colour, as hexadecimal digits."""
    points = (imread(path)[..., :3] * 255).round().astype(np.int64) @ [1 << 16, 1 << 8, 1]
    found, counts = np.unique(points, return_counts=True)
    return {f"#{colour:06x}": int(count) for colour, count in zip(found, counts, strict=True)}


@pytest.mark.parametrize("count", [1, 5, 61, 5000])
def test_a_run_of_any_length_gives_a_picture(out, count):
    draw({"run": make_steps(count, eval_loss=2.0)}, out, unigram_entropy=3.0)

    height, width, _ = imread(out).shape
    assert (width, height) == (1350, 1125)


@pytest.mark.parametrize("count", [10, 1000])
def test_time_is_shown_in_the_proportions_of_compute_exchange_and_waiting(out, count):
    draw({"run": make_steps(count, compute_s=0.5, exchange_s=0.3, wait_s=0.2)}, out)

    found = colours(out)
    exchange, waiting = found["#f58518"], found["#bab0ac"]
    assert exchange / waiting == pytest.approx(1.5, rel=0.05)
    assert found["#4c78a8"] / waiting == pytest.approx(2.5, rel=0.1), "the line of the loss has this colour, too"


@pytest.mark.slow
def test_evaluations_and_entropy_are_drawn_where_there_are_some(out):
    draw({"run": make_steps(5)}, out)
    plain = colours(out)

    draw({"run": make_steps(5, eval_loss=1.0)}, out)
    evaluated = colours(out)
    draw({"run": make_steps(5)}, out, unigram_entropy=3.0)
    with_entropy = colours(out)

    assert evaluated.get("#222222", 0) > plain.get("#222222", 0)
    assert with_entropy.get("#777777", 0) > plain.get("#777777", 0) + 100


@pytest.mark.slow
def test_several_runs_have_their_times_below_each_other(out):
    draw({"one": make_steps(5), "two": make_steps(7), "three": make_steps(3)}, out)

    assert imread(out).shape[0] > 1700
    assert {"#4c78a8", "#e45756", "#54a24b"} <= colours(out).keys()


def test_a_run_without_measured_time_can_be_drawn(out):
    draw({"run": [make_step(1, compute_s=0.0, exchange_s=0.0, wait_s=0.0)]}, out)

    assert out.exists()


def test_a_run_without_steps_is_named(out):
    with pytest.raises(ConfigError, match=r"^there is nothing to draw: two has no steps yet$"):
        draw({"one": make_steps(1), "two": []}, out)

    assert not out.exists()


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError) as caught:
        draw({"run": make_steps(1)}, tmp_path)

    assert str(caught.value) == f"cannot write {tmp_path}: Is a directory; name another file with --out"


def test_without_matplotlib_the_words_say_how_to_get_it(tmp_path):
    program = """
import sys
sys.modules["matplotlib.figure"] = None
from pathlib import Path
from phalanx.errors import ConfigError
from phalanx.train.plot import draw
try:
    draw({}, Path("none.png"))
except ConfigError as error:
    print(error)
"""

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert said == "drawing needs matplotlib: pip install 'phalanx-train[train]'\n"


@pytest.mark.parametrize(
    ("count", "means"), [(3, [0, 1, 2]), (4, [0.5, 2.5]), (5, [0.5, 2.5, 4]), (9, [1, 4, 7]), (10, [1.5, 5.5, 8.5])]
)
def test_neighbours_are_taken_together_until_few_enough_remain(count, means):
    assert _means(np.arange(float(count)), 3).tolist() == means

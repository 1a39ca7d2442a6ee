"""Drawing runs: their loss, and where their time went."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.errors import ConfigError
from phalanx.train.record import StepRecord

_MOST_BARS = 150  # more would be too thin to see
_MOST_POINTS = 60  # more make a noisy line, and markers that hide it
_PARTS = (("compute", "compute_s", "#4c78a8"), ("exchange", "exchange_s", "#f58518"), ("waiting", "wait_s", "#bab0ac"))
_COLOURS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#9d755d", "#72b7b2")

_Axes = Any  # matplotlib is imported only when something is drawn
_Values = NDArray[np.float64]


def draw(runs: Mapping[str, Sequence[StepRecord]], out: Path, *, unigram_entropy: float | None = None) -> None:
    """Write a PNG: the loss of all runs, and below it the seconds per step of each."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - it takes half a second, and only this command needs it
    except ImportError:
        raise ConfigError("drawing needs matplotlib: pip install 'phalanx-train[train]'") from None
    empty = [name for name, steps in runs.items() if not steps]
    if empty or not runs:
        raise ConfigError(f"there is nothing to draw: {' and '.join(empty) or 'no run'} has no steps yet")
    heights = [3, *(2 for _ in runs)]
    figure = Figure(figsize=(9, 1 + 1.3 * sum(heights)), layout="constrained")
    loss, *times = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    for axes in times[1:]:
        axes.sharey(times[0])
    _draw_loss(loss, runs, unigram_entropy)
    for axes, (name, steps) in zip(times, runs.items(), strict=True):
        _draw_times(axes, steps, title=name if len(runs) > 1 else "")
    for axes in (loss, *times):
        _style(axes)
    times[-1].set_xlabel("step")
    try:
        figure.savefig(out, dpi=150, format="png")
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}; name another file with --out") from error


def _draw_loss(axes: _Axes, runs: Mapping[str, Sequence[StepRecord]], unigram_entropy: float | None) -> None:
    for number, (name, steps) in enumerate(runs.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        numbers = np.array([float(record.step) for record in steps])
        losses = np.array([record.loss for record in steps])
        whose = f"{name}: " if len(runs) > 1 else ""
        if len(steps) <= _MOST_POINTS:
            axes.plot(numbers, losses, color=colour, marker="o", markersize=3, label=f"{whose}loss")
        else:
            axes.plot(numbers, losses, color=colour, alpha=0.3, linewidth=0.7)
            smooth = _means(numbers, _MOST_POINTS), _means(losses, _MOST_POINTS)
            axes.plot(*smooth, color=colour, linewidth=1.6, label=f"{whose}loss")
        evaluated = [(record.step, record.eval_loss) for record in steps if record.eval_loss is not None]
        if evaluated:
            style = {"marker": "D", "markersize": 5, "markeredgecolor": "#222222", "linestyle": "none", "zorder": 3}
            axes.plot(*zip(*evaluated, strict=True), color=colour, label=f"{whose}held-out loss", **style)
    if unigram_entropy is not None:
        axes.axhline(unigram_entropy, color="#777777", linestyle="--", linewidth=1, label="unigram entropy")
    axes.set_ylabel("loss (nats per token)")
    if len(runs) == 1:
        ((name, steps),) = runs.items()
        axes.set_title(f"{name}: loss {steps[-1].loss:.3f} at step {steps[-1].step}", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=9, loc="upper right")


def _draw_times(axes: _Axes, steps: Sequence[StepRecord], title: str) -> None:
    edges = [record.step - 0.5 for record in steps[:: _width(len(steps), _MOST_BARS)]] + [steps[-1].step + 0.5]
    columns = [np.array([getattr(record, field) for record in steps]) for _, field, _ in _PARTS]
    whole_s = max(sum(seconds.sum() for seconds in columns), 1e-12)
    base = np.zeros(len(edges) - 1)
    for seconds, (name, _, colour) in zip(columns, _PARTS, strict=True):
        top = base + _means(seconds, _MOST_BARS)
        label = f"{name} {seconds.sum() / whole_s:.0%}"
        axes.stairs(top, edges, baseline=base, fill=True, color=colour, label=label)
        base = top
    axes.set_ylim(bottom=0)
    axes.set_ylabel("seconds per step")
    axes.set_title(title, loc="left", fontsize=10)
    above = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.2}
    axes.legend(frameon=False, fontsize=9, ncols=len(_PARTS), **above)


def _means(values: _Values, most: int) -> _Values:
    """Return the means of groups of neighbours, at most ``most`` of them."""
    starts = np.arange(0, len(values), _width(len(values), most))
    return np.add.reduceat(values, starts) / np.diff([*starts, len(values)])


def _width(count: int, most: int) -> int:
    """Return how many neighbours to average, so that at most ``most`` values remain."""
    return -(-count // most)


def _style(axes: _Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.margins(x=0.01)

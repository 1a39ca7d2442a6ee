"""Drawing what was measured of all-reduces: our own systems beside others."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phalanx.bench.all_reduce.plan import AllReduceRow, AllReduceSystem
from phalanx.bench.text import format_size, format_time
from phalanx.errors import ConfigError

_OTHERS = {AllReduceSystem.GLOO.value: "Gloo", AllReduceSystem.OPENMPI.value: "Open MPI"}
_OURS = "#2f81f7"
_THEIRS = "#8b949e"
_TEXT = "#768390"  # readable on white and on black, as are the bars
_FORMATS = (".svg", ".png")


def draw_all_reduces(rows: Sequence[AllReduceRow], out: Path, footer: str) -> None:
    """Write a chart of median times, with a panel for every size of group and of buffer, as SVG or PNG.

    The background is transparent, and all colours can be read on a light and on a dark page.
    """
    if out.suffix not in _FORMATS:
        raise ConfigError(f"a chart is an SVG or a PNG: pass --plot with a name such as {out.stem}.svg, not {out.name}")
    try:
        import matplotlib as mpl  # noqa: PLC0415 - it takes half a second, and only charts need it
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise ConfigError("drawing needs matplotlib: pip install 'phalanx-train[train]'") from None
    groups = sorted({row.ranks for row in rows})
    sizes = sorted({row.bytes for row in rows})
    systems = list(dict.fromkeys(row.system for row in rows))
    height = 0.9 + len(groups) * (0.55 + 0.3 * len(systems))
    colours = {"text.color": _TEXT, "ytick.color": _TEXT, "svg.fonttype": "none", "svg.hashsalt": "phalanx"}
    with mpl.rc_context(colours | {"font.size": 9, "font.family": "sans-serif"}):
        figure = Figure(figsize=(max(4.5, 3.0 * len(sizes)), height), layout="constrained")
        panels = figure.subplots(len(groups), len(sizes), squeeze=False)
        for line, ranks in zip(panels, groups, strict=True):
            for axes, size in zip(line, sizes, strict=True):
                here = {row.system: row for row in rows if (row.ranks, row.bytes) == (ranks, size)}
                _draw_panel(
                    axes, [here[name] for name in systems if name in here], f"{format_size(size)}, {ranks} ranks"
                )
                axes.tick_params(labelleft=axes is line[0])
        figure.suptitle("Median time of an all-reduce (f32, sum); shorter is better", x=0.01, ha="left", fontsize=11)
        figure.supxlabel(footer, x=0.01, ha="left", fontsize=7.5)
        try:
            figure.savefig(out, dpi=150, transparent=True, metadata={"Date": None} if out.suffix == ".svg" else None)
        except OSError as error:
            raise ConfigError(f"cannot write {out}: {error.strerror}; name another file with --plot") from error


def _draw_panel(axes: Any, rows: Sequence[AllReduceRow], title: str) -> None:  # Any: matplotlib is imported late
    names = [_OTHERS.get(row.system, f"Phalanx {row.system}") for row in rows]
    times = [row.median_s for row in rows]
    colours = [_THEIRS if row.system in _OTHERS else _OURS for row in rows]
    bars = axes.barh(names, times, color=colours, height=0.68)
    axes.bar_label(bars, [format_time(each) for each in times], padding=4, fontsize=8)
    axes.set_xlim(0, 1.4 * max(times))  # room for the figures
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=9, color=_TEXT)
    axes.spines[:].set_visible(False)
    axes.xaxis.set_visible(False)
    axes.tick_params(length=0)

"""Draw docs/images/phalanx.svg, the picture of the README; its figures are those of docs/log.md."""

from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

OUTPUT = Path(__file__).parents[1] / "docs/images/phalanx.svg"
LANES = 8
DIGEST = "6a16ff06aca7399f"  # "The same digest everywhere"
OVERHEAD = {  # "What an exchange adds to a training step", the last run: 2 workers, 4 workers
    "Engine": (17.2, 14.8),
    "DataParallel": (17.9, 14.2),
    "DDP over Gloo": (38.5, 48.5),
}
RECOVERY_MS = {  # "Runs that outlive their workers", the medians of `--chaos kill=8`
    "noticed": 34,
    "the others go on": 38,
    "next step counts": 408,
}
WORKERS = ["#1f4e79", "#2e86ab", "#7fb7be", "#d3a625", "#c8553d", "#8f2d56", "#588157", "#6c757d"]
GREY = "#5c6670"


def draw_lanes(axes: Axes) -> None:
    """Draw who computes which lanes with 1, 2, 3 and 8 workers, and the one digest that all of them give."""
    for row, count in enumerate((1, 2, 3, 8)):
        y = 3 - row
        axes.text(-0.3, y, f"{count} worker{'s' if count > 1 else ''}", ha="right", va="center", color=GREY)
        for lane in range(LANES):
            owner = next(worker for worker in range(count) if lane < -(-LANES * (worker + 1) // count))
            axes.add_patch(
                FancyBboxPatch((lane + 0.08, y - 0.3), 0.84, 0.6, boxstyle="round,pad=0,rounding_size=0.1",
                               facecolor=WORKERS[owner], edgecolor="none")
            )  # fmt: skip
        axes.annotate("", (9.6, 1.5 + (y - 1.5) * 0.3), (8.15, y), arrowprops={"arrowstyle": "->", "color": GREY})
    axes.text(4, 3.62, "8 lanes, each the same for whoever computes it", ha="center", color=GREY)
    axes.text(9.75, 1.72, "the same weights", va="center", weight="bold")
    axes.text(9.75, 1.22, DIGEST, va="center", family="monospace", color=WORKERS[0])
    axes.set(xlim=(-2.2, 13.2), ylim=(-0.5, 4.0))
    axes.axis("off")


def draw_overhead(axes: Axes) -> None:
    """Draw how much longer a step takes than without any exchange."""
    for place, (name, figures) in enumerate(OVERHEAD.items()):
        color = GREY if "Gloo" in name else WORKERS[0]
        for side, (workers, figure) in enumerate(zip((2, 4), figures, strict=True)):
            x = place + (side - 0.5) * 0.4
            axes.bar(x, figure, 0.36, color=color, alpha=0.65 if side else 1)
            axes.text(x, figure + 1, f"{figure} %", ha="center")
            axes.text(x, -1.2, str(workers), ha="center", va="top", color=GREY, size=8)
        axes.text(place, -5.6, name, ha="center", va="top")
    axes.set(xlim=(-0.6, 2.6), ylim=(0, 56), xticks=[], yticks=[])
    axes.set_title("What the exchange adds to a step of 2 and 4 workers", loc="left", size=11)


def draw_recovery(axes: Axes) -> None:
    """Draw what happens after a worker was killed."""
    axes.hlines(0, 0, 430, color=GREY, lw=2)
    axes.plot([0], [0], "X", color=WORKERS[4], ms=12)
    axes.text(0, -0.22, "kill -9", ha="center", va="top", color=WORKERS[4], weight="bold")
    heights = (0.75, 0.42, 0.3)
    for (name, figure), height in zip(RECOVERY_MS.items(), heights, strict=True):
        axes.vlines(figure, 0, height, color=WORKERS[0], lw=1)
        axes.plot([figure], [0], "o", color=WORKERS[0], ms=7)
        is_last = name == "next step counts"
        axes.text(figure + (0 if is_last else 6), height, f"{name}: {figure} ms",
                  ha="right" if is_last else "left", va="bottom" if is_last else "center")  # fmt: skip
    axes.text(215, -0.22, "with the bits it would have had anyway", ha="center", va="top", color=GREY)
    axes.set(xlim=(-35, 445), ylim=(-0.6, 1.0), xticks=[], yticks=[])
    axes.set_title("When one of 4 workers is killed", loc="left", size=11)


def main() -> None:
    """Draw the picture."""
    mpl.rcParams.update({"font.family": "DejaVu Sans", "font.size": 9.5, "svg.hashsalt": "phalanx"})
    figure = plt.figure(figsize=(10.5, 5.6))
    grid = figure.add_gridspec(2, 2, height_ratios=(1.05, 1), hspace=0.3, wspace=0.12,
                               left=0.04, right=0.97, top=0.99, bottom=0.11)  # fmt: skip
    draw_lanes(figure.add_subplot(grid[0, :]))
    for draw, cell in ((draw_overhead, grid[1, 0]), (draw_recovery, grid[1, 1])):
        axes = figure.add_subplot(cell)
        axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
        draw(axes)
    words = (
        "Measured on 2 cores. Steps: 10.7 M parameters, 64 tokens a worker. Kills: the default model of phalanx train."
    )
    figure.text(0.04, 0.01, f"{words} The commands are in docs/log.md.", color=GREY, size=8)
    OUTPUT.parent.mkdir(exist_ok=True)
    figure.savefig(OUTPUT, facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()

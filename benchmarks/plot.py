"""Cost against tokens as a picture, readable on a light and on a dark page."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Entry
from benchmarks.suite.analysis import FORWARD, HOOKS, MAX, MEAN

INK = "#808080"
# Colours after Okabe and Ito, for colour-blind readers; the blue is lighter, so that it is visible on black, too.
LINES = {
    FORWARD: ("timm forward", INK),
    HOOKS: ("timm hooks", "#D55E00"),
    MEAN: ("vitviz, mean rollout", "#2480BE"),
    MAX: ("vitviz, max rollout", "#009E73"),
}
STYLE = {
    # The SVG is reproducible, with its text as text.
    "svg.hashsalt": "cost",
    "svg.fonttype": "none",
    "font.size": 11,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": "linecolor",
    "lines.markersize": 4,
    "lines.linewidth": 1.8,
}


def draw_cost(entries: list[Entry], path: Path) -> None:
    """Draw the times and the memory of the part ``tokens``."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    tokens = {entry["case"]: entry["tokens"] for entry in entries if entry["kind"] == "time"}
    panels = {
        "time, ms": [(each, 1e3 * each["seconds"]["median"]) for each in entries if each["kind"] == "time"],
        "peak memory over the idle model, MiB": [
            (each, each["bytes"] / 2**20) for each in entries if each["kind"] == "memory"
        ],
    }
    with rc_context(STYLE):
        figure = Figure(figsize=(12, 5), layout="constrained")
        for axes, (title, values) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            for name, (label, colour) in LINES.items():
                # Only positive values, for logarithmic axes.
                line = [(tokens[each["case"]], value) for each, value in values if each["contestant"] == name]
                line = sorted(point for point in line if point[1] > 0)
                axes.plot(*zip(*line, strict=True), "o-", color=colour, label=label)
            axes.set(xscale="log", yscale="log", xlabel="tokens", title=title)
            axes.set_xticks(sorted(tokens.values()), [f"{each:,}" for each in sorted(tokens.values())])
            axes.set_xticks([], minor=True)
            axes.legend()
        figure.savefig(path, transparent=True, metadata={"Date": None})

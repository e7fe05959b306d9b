"""Cost against tokens as a picture, readable on a light and on a dark page."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Entry
from benchmarks.suite.analysis import FORWARD, HOOKS, MAX, MEAN

INK = "#808080"
# Colours after Okabe and Ito, for colour-blind readers; the blue is lighter, so that it is visible on black, too.
COLOURS = {FORWARD: INK, HOOKS: "#D55E00", MEAN: "#2480BE", MAX: "#009E73"}
LABELS = {FORWARD: "timm forward", HOOKS: "timm hooks", MEAN: "vitviz, mean rollout", MAX: "vitviz, max rollout"}


def draw_cost(entries: list[Entry], folder: Path) -> str | None:
    """Write ``cost.svg`` of the part ``tokens``; returns its name, None without data."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    times = {entry["case"]: entry for entry in entries if entry["kind"] == "time"}
    if not times:
        return None
    milliseconds = [(each, 1e3 * each["seconds"]["median"]) for each in entries if each["kind"] == "time"]
    memory = [(each, each["bytes"] / 2**20) for each in entries if each["kind"] == "memory"]
    # These settings make the SVG reproducible, with its text as text.
    with rc_context({"svg.hashsalt": "cost", "svg.fonttype": "none", "font.size": 11}):
        figure = Figure(figsize=(12, 5), layout="constrained")
        FigureCanvasAgg(figure)
        panels = {"time, ms": milliseconds, "peak memory over the idle model, MiB": memory}
        for axes, (title, values) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            for name, label in LABELS.items():
                # Only positive values, for logarithmic axes.
                line = [(times[each["case"]]["tokens"], value) for each, value in values if each["contestant"] == name]
                line = sorted(point for point in line if point[1] > 0)
                axes.plot(*zip(*line, strict=True), "o-", color=COLOURS[name], label=label, markersize=4, linewidth=1.8)
            axes.set(xscale="log", yscale="log", xlabel="tokens")
            axes.set_title(title, color=INK, loc="left")
            ticks = sorted({entry["tokens"] for entry in times.values()})
            axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            axes.set_xticks([], minor=True)
            axes.tick_params(which="both", colors=INK, labelcolor=INK)
            axes.xaxis.label.set_color(INK)
            axes.grid(color=INK, alpha=0.25, linewidth=0.6)
            axes.spines[:].set_color(INK)
            axes.spines[["right", "top"]].set_visible(False)
            axes.legend(frameon=False, labelcolor="linecolor")
        figure.savefig(folder / "cost.svg", transparent=True, metadata={"Date": None})
    return "cost.svg"

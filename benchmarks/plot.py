"""Cost against tokens as a picture, readable on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Entry
from benchmarks.suite.analysis import FORWARD, HOOKS, MAX, MEAN

INK = "#808080"
# Colours after Okabe and Ito, for colour-blind readers; the blue is lighter, so that it is visible on black, too.
COLOURS = {FORWARD: INK, HOOKS: "#D55E00", MEAN: "#2480BE", MAX: "#009E73"}
LABELS = {FORWARD: "timm forward", HOOKS: "timm hooks", MEAN: "vitviz, mean rollout", MAX: "vitviz, max rollout"}
TICKS = (65, 197, 401, 785, 1601, 3601, 10001)
Points = dict[str, list[tuple[int, float]]]


def draw_cost(entries: list[Entry], folder: Path) -> str | None:
    """Write ``cost.svg`` of the part ``tokens``; returns its name, None without data."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    times = points(entries, "time", lambda entry: 1e3 * entry["seconds"]["median"])
    if not times:
        return None
    memory = points(entries, "memory", lambda entry: entry["bytes"] / 2**20)
    # These settings make the SVG reproducible, with its text as text.
    with rc_context({"svg.hashsalt": "cost", "svg.fonttype": "none", "font.size": 11}):
        figure = Figure(figsize=(12, 5), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, title, series in zip(
            figure.subplots(1, 2), ("time, ms", "peak memory over the idle model, MiB"), (times, memory), strict=True
        ):
            _panel(axes, title, series)
        figure.savefig(folder / "cost.svg", transparent=True, metadata={"Date": None})
    return "cost.svg"


def points(entries: list[Entry], kind: str, value: Callable[[Entry], float]) -> Points:
    """Tokens and value of every contestant, in the order of the tokens; only positive values, for logarithmic axes."""
    tokens = {entry["case"]: entry["tokens"] for entry in entries if entry["kind"] == "time"}
    series: Points = {}
    for entry in entries:
        if entry["kind"] == kind and entry["case"] in tokens and value(entry) > 0:
            series.setdefault(entry["contestant"], []).append((tokens[entry["case"]], value(entry)))
    return {name: sorted(line) for name, line in series.items()}


def _panel(axes: Any, title: str, series: Points) -> None:
    axes.set(xscale="log", yscale="log", xlabel="tokens")
    axes.set_title(title, color=INK, loc="left")
    for name, line in series.items():
        colour, label = COLOURS.get(name, INK), LABELS.get(name, name)
        axes.plot(*zip(*line, strict=True), "o-", color=colour, label=label, markersize=4, linewidth=1.8)
    present = [tick for tick in TICKS if any(tick == tokens for line in series.values() for tokens, _ in line)]
    axes.set_xticks(present, [f"{tick:,}" for tick in present])
    axes.set_xticks([], minor=True)
    axes.tick_params(which="both", colors=INK)
    axes.xaxis.label.set_color(INK)
    axes.grid(color=INK, alpha=0.25, linewidth=0.6)
    for side, spine in axes.spines.items():
        spine.set(color=INK, visible=side in ("left", "bottom"))
    if series:
        axes.legend(frameon=False, labelcolor="linecolor")

"""Cost against tokens as a picture, readable on a light and on a dark page."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
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
    """Write ``cost.svg`` and ``cost.png`` of the part ``tokens``; returns the name of the first, None without data."""
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
        for kind in ("svg", "png"):
            metadata = {"Date": None} if kind == "svg" else None
            figure.savefig(folder / f"cost.{kind}", transparent=True, dpi=150, metadata=metadata)
    return "cost.svg"


def points(entries: list[Entry], kind: str, value: Callable[[Entry], float]) -> Points:
    """Tokens and value of every contestant, in the order of the tokens; only positive values, for logarithmic axes."""
    tokens = {entry["case"]: entry["tokens"] for entry in entries if entry["kind"] == "time"}
    series: Points = {}
    for entry in entries:
        if entry["kind"] == kind and entry["case"] in tokens and value(entry) > 0:
            series.setdefault(entry["contestant"], []).append((tokens[entry["case"]], value(entry)))
    return {name: sorted(line) for name, line in series.items()}


def spread_apart(positions: list[float], min_distance: float) -> list[float]:
    """Positions moved up, from low to high, so that each is at least this far above the one below."""
    moved = list(positions)
    order = sorted(range(len(positions)), key=positions.__getitem__)
    for below, above in pairwise(order):
        moved[above] = max(moved[above], moved[below] + min_distance)
    return moved


def _panel(axes: Any, title: str, series: Points) -> None:
    axes.set(xscale="log", yscale="log", xlabel="tokens")
    axes.set_title(title, color=INK, loc="left")
    for name, line in series.items():
        axes.plot(*zip(*line, strict=True), "o-", color=COLOURS.get(name, INK), markersize=4, linewidth=1.8)
    present = [tick for tick in TICKS if any(tick == tokens for line in series.values() for tokens, _ in line)]
    axes.set_xticks(present, [f"{tick:,}" for tick in present])
    axes.set_xticks([], minor=True)
    axes.tick_params(which="both", colors=INK)
    axes.xaxis.label.set_color(INK)
    axes.grid(color=INK, alpha=0.25, linewidth=0.6)
    for side, spine in axes.spines.items():
        spine.set(color=INK, visible=side in ("left", "bottom"))
    if series:
        _label(axes, series)


def _label(axes: Any, series: Points) -> None:
    """Write each line's name after its last point; for a line that ends early, before that point."""
    low, high = (math.log10(end) for end in axes.get_ylim())
    max_tokens = max(line[-1][0] for line in series.values())
    names = [name for name, line in series.items() if line[-1][0] == max_tokens]
    ends = [math.log10(series[name][-1][1]) for name in names]
    heights = spread_apart(ends, 0.055 * (high - low))
    mean_shift = (sum(heights) - sum(ends)) / len(ends)
    heights_by_name = {name: height - mean_shift for name, height in zip(names, heights, strict=True)}
    for name, line in series.items():
        tokens, value = line[-1]
        labelled_after = name in heights_by_name
        axes.annotate(
            LABELS.get(name, name),
            (tokens, 10 ** heights_by_name[name] if labelled_after else value),
            xytext=(8 if labelled_after else -8, 0 if labelled_after else 4),
            textcoords="offset points",
            ha="left" if labelled_after else "right",
            va="center",
            color=COLOURS.get(name, INK),
            annotation_clip=False,
        )

"""Cost against tokens as a picture, readable on a light and on a dark page."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.measure import Entry
from benchmarks.parts.analysis import FORWARD, HOOKS, MAX, MEAN

INK = "#808080"
# After Okabe and Ito, told apart by the colour-blind; the blue is lighter, so that it shows on black too.
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
    # The same picture for the same numbers; letters as letters.
    with rc_context({"svg.hashsalt": "cost", "svg.fonttype": "none", "font.size": 11}):
        figure = Figure(figsize=(12, 5), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, title, found in zip(
            figure.subplots(1, 2), ("time, ms", "peak memory over the idle model, MiB"), (times, memory), strict=True
        ):
            _panel(axes, title, found)
        for kind in ("svg", "png"):
            metadata = {"Date": None} if kind == "svg" else None
            figure.savefig(folder / f"cost.{kind}", transparent=True, dpi=150, metadata=metadata)
    return "cost.svg"


def points(entries: list[Entry], kind: str, value: Callable[[Entry], float]) -> Points:
    """Tokens and value of every contestant, in the order of the tokens; only what a logarithm can show."""
    tokens = {entry["case"]: entry["tokens"] for entry in entries if entry["kind"] == "time"}
    found: Points = {}
    for entry in entries:
        if entry["kind"] == kind and entry["case"] in tokens and value(entry) > 0:
            found.setdefault(entry["contestant"], []).append((tokens[entry["case"]], value(entry)))
    return {name: sorted(line) for name, line in found.items()}


def apart(places: list[float], least: float) -> list[float]:
    """Places, in their order from low to high, moved up so far that each is at least this far above the one below."""
    moved = list(places)
    order = sorted(range(len(places)), key=places.__getitem__)
    for below, above in pairwise(order):
        moved[above] = max(moved[above], moved[below] + least)
    return moved


def _panel(axes: Any, title: str, found: Points) -> None:
    axes.set(xscale="log", yscale="log", xlabel="tokens")
    axes.set_title(title, color=INK, loc="left")
    for name, line in found.items():
        axes.plot(*zip(*line, strict=True), "o-", color=COLOURS.get(name, INK), markersize=4, linewidth=1.8)
    present = [tick for tick in TICKS if any(tick == tokens for line in found.values() for tokens, _ in line)]
    axes.set_xticks(present, [f"{tick:,}" for tick in present])
    axes.set_xticks([], minor=True)
    axes.tick_params(which="both", colors=INK)
    axes.xaxis.label.set_color(INK)
    axes.grid(color=INK, alpha=0.25, linewidth=0.6)
    for side, spine in axes.spines.items():
        spine.set(color=INK, visible=side in ("left", "bottom"))
    if found:
        _label(axes, found)


def _label(axes: Any, found: Points) -> None:
    """Each line's name behind its last point; that of a line that ends early before it, where no other line is."""
    low, high = (math.log10(end) for end in axes.get_ylim())
    most = max(line[-1][0] for line in found.values())
    names = [name for name, line in found.items() if line[-1][0] == most]
    ends = [math.log10(found[name][-1][1]) for name in names]
    heights = apart(ends, 0.055 * (high - low))
    raised = (sum(heights) - sum(ends)) / len(ends)
    places = {name: height - raised for name, height in zip(names, heights, strict=True)}
    for name, line in found.items():
        tokens, value = line[-1]
        behind = name in places
        axes.annotate(
            LABELS.get(name, name),
            (tokens, 10 ** places[name] if behind else value),
            xytext=(8 if behind else -8, 0 if behind else 4),
            textcoords="offset points",
            ha="left" if behind else "right",
            va="center",
            color=COLOURS.get(name, INK),
            annotation_clip=False,
        )

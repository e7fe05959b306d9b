"""How near the forward pass an analysis stays, and what every method costs beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import product

import numpy as np
import torch

import vitviz
from benchmarks.benchmark import MIB, Run
from benchmarks.gpu.card import Card, held_to
from benchmarks.networks import B_14, B_16, S_8, TI_16, Shape, timm_model, transformers_model, vitviz_model
from vitviz import METHODS, Analysis, Model
from vitviz.analysis.batches import map_batch
from vitviz.attribution import AttributionInput
from vitviz.models.targets import class_target

PRECISIONS = ("float32", "bfloat16")
# Occlusion that would take longer is left out.
MAX_OCCLUSION_SECONDS = 8.0
FLOOR, EAGER, ANALYSIS = "forward pass", "output_attentions=True", "analysis"
CLASS_METHODS = ("relevance", "legrad", "integrated_gradients", "occlusion")
MAX_ROLLOUT = {"head_fusion": "max", "discard_ratio": 0.9}
Costs = dict[str, tuple[float, int | None]]
"""Seconds, and bytes where they are counted, of what fits into the card's memory."""


def measure(card: Card) -> None:
    shapes, batches = ((B_14.stand_in(),), (2, 1)) if card.small else ((B_16, B_14, TI_16, S_8.at(512)), (32, 1))
    for precision, shape, batch in product(PRECISIONS, shapes, batches):
        pixels = torch.randn(batch, 3, shape.image, shape.image, device=card.device)
        reference, floor = floor_run(shape, pixels, precision)
        model = vitviz_model(shape, card.device, precision)
        with torch.inference_mode():
            runs = {FLOOR: floor, ANALYSIS: partial(model.network.encode, pixels), **of_attention(model, pixels)}
            costs = costs_of(card, runs)
        if batch == 1:
            runs = of_classes(model, pixels, costs[FLOOR][0])
            costs |= costs_of(card, runs)
        # Their memory is for what people do: a forward pass that returns all attention weights.
        del runs, floor, model
        eager = transformers_model(shape, "eager", card.device).to(getattr(torch, precision))
        run = partial(eager, pixels.to(eager.dtype), output_attentions=True)
        costs |= costs_of(card, {EAGER: torch.inference_mode()(run)})
        del eager, run
        report(card, shape, batch, precision, reference, costs)


def costs_of(card: Card, runs: Mapping[str, Run]) -> Costs:
    return {name: (seconds, card.peak_bytes(runs[name])) for name, seconds in card.turns(runs).items()}


def floor_run(shape: Shape, pixels: torch.Tensor, precision: str) -> tuple[str, Run]:
    """The fastest forward pass that people have: timm's, or that of transformers where timm is missing."""
    name, dtype = "timm" if find_spec("timm") else "transformers, sdpa", getattr(torch, precision)
    if name == "timm":
        model = timm_model(replace(shape, layer_scale=False), pixels.device)
    else:
        model = transformers_model(shape, "sdpa", pixels.device)
    return name, partial(model.to(dtype), pixels.to(dtype))


def analysis_of(model: Model) -> Analysis:
    shape = model.preprocessing.height, model.preprocessing.width, 3
    return vitviz.analyze(np.random.default_rng(1).integers(0, 256, shape, np.uint8), model)


def of_attention(model: Model, pixels: torch.Tensor) -> dict[str, Run]:
    """What needs the trace alone."""
    analysis = analysis_of(model)
    if len(pixels) > 1:
        traces = model.network.encode(pixels).traces
        analyses = [Analysis(model, analysis.prepared, analysis.logits, trace) for trace in traces]
        return {
            "rollout": partial(map_batch, analyses, "rollout"),
            "rollout, max, 90 % discarded": partial(map_batch, analyses, "rollout", **MAX_ROLLOUT),
            "CLS rows of all layers": lambda: [trace.rows("cls") for trace in traces],
        }

    def rollout(**options: str | float) -> object:
        # The first one, before an analysis keeps matrices.
        analysis.trace._cached_fused.clear()
        return analysis.map("rollout", **options)

    return {
        "picture to analysis": partial(analysis_of, model),
        "rollout": rollout,
        "rollout, max, 90 % discarded": partial(rollout, **MAX_ROLLOUT),
        "CLS rows of all layers": partial(analysis.trace.rows, "cls"),
        "sheet": analysis.attention_sheet,
    }


def of_classes(model: Model, pixels: torch.Tensor, forward_seconds: float) -> dict[str, Run]:
    """What runs the network again, for one class."""
    config = model.network.config
    target, tokens = class_target(0, config.classes), config.layout(*pixels.shape[-2:]).token_count

    def run(name: str) -> object:
        inputs = AttributionInput(model.network, pixels, target)
        return METHODS[name].compute(inputs if METHODS[name].requires == "inputs" else inputs.gradients)

    is_slow = (tokens - 1) * forward_seconds >= MAX_OCCLUSION_SECONDS
    names = [name for name in CLASS_METHODS if find_spec(METHODS[name].package or "torch") is not None]
    return {METHODS[name].title: partial(run, name) for name in names if name != "occlusion" or not is_slow}


def report(card: Card, shape: Shape, batch: int, precision: str, reference: str, costs: Costs) -> None:
    """Add a row of times, and one of memory."""
    row = f"{shape.title}, {shape.tokens:,} tokens, batch of {batch}"
    floor, floor_bytes = costs.pop(FLOOR)
    times = {name: seconds / floor for name, (seconds, _) in costs.items()}
    cells = {f"{FLOOR}, ms": 1e3 * floor, "reference": reference, EAGER: "does not fit", **times}
    cells[ANALYSIS] = held_to(times[ANALYSIS], 1.2 if batch > 1 or shape.tokens >= B_14.tokens else 1.5)
    if batch == 1 and find_spec("captum") is None:
        cells |= {method.title: "captum is missing" for method in METHODS.values() if method.package == "captum"}
    card.add(f"As multiples of the forward pass, {precision}", row, cells)
    if floor_bytes:
        peaks = {name: (peak or 0) / floor_bytes for name, (_, peak) in costs.items()}
        cells = {f"{FLOOR}, MiB": floor_bytes / MIB, EAGER: "does not fit", **peaks}
        if EAGER in peaks:
            share = peaks[ANALYSIS] / peaks[EAGER]
            held = held_to(share, 0.25) if shape.tokens == B_14.tokens else share
            cells["analysis, as a share of output_attentions"] = held
        card.add(f"Peak memory beside the weights, as multiples of the forward pass, {precision}", row, cells)

"""How near the forward pass an analysis stays, and what every method costs beside it."""

from __future__ import annotations

from functools import partial
from itertools import product

import torch

from benchmarks.gpu.card import Card, Run, held_to, text
from benchmarks.gpu.networks import analysis_of, floor_model, has, transformers_model, vitviz_model
from benchmarks.shapes import B_14, B_16, S_8, TI_16, Shape
from vitviz import METHODS, Model
from vitviz.analysis.batches import map_batch
from vitviz.attribution import AttributionInput
from vitviz.models.targets import class_target

SHAPES = (B_16, B_14, TI_16, S_8.at(512))
BATCHES = (32, 1)
PRECISIONS = ("float32", "bfloat16")
# Occlusion that would take longer is left out.
MAX_OCCLUSION_SECONDS = 8.0
FLOOR, EAGER, ANALYSIS = "forward pass", "output_attentions=True", "analysis"
CLASS_METHODS = ("relevance", "legrad", "integrated_gradients")


def measure(card: Card) -> None:
    shapes, batches = ((B_14.stand_in(),), (2, 1)) if card.small else (SHAPES, BATCHES)
    for precision, shape, batch in product(PRECISIONS, shapes, batches):
        Case(card, shape, precision, batch).run()


class Case:
    """One network, precision and size of batch."""

    def __init__(self, card: Card, shape: Shape, precision: str, batch: int) -> None:
        self.card, self.shape, self.precision, self.batch = card, shape, precision, batch
        self.pixels = torch.randn(batch, 3, shape.image, shape.image, device=card.device)

    def run(self) -> None:
        card = self.card
        floor_name, floor = self.forward()
        model = vitviz_model(self.shape, card.device, self.precision)
        with torch.inference_mode():
            runs: dict[str, Run] = {FLOOR: floor, ANALYSIS: partial(model.network.encode, self.pixels)}
            runs |= self.of_attention(model)
            seconds = card.turns(runs)
            peaks = {name: card.peak_bytes(runs[name]) for name in seconds}
            del runs, floor
        if self.batch == 1:
            runs = self.of_classes(model, seconds[FLOOR])
            of_classes = card.turns(runs)
            peaks |= {name: card.peak_bytes(runs[name]) for name in of_classes}
            seconds |= of_classes
            del runs
        del model
        eager, peaks[EAGER] = self.eager()
        self.report(floor_name, seconds if eager is None else {**seconds, EAGER: eager}, peaks)

    def forward(self) -> tuple[str, Run]:
        name, model = floor_model(self.shape, self.card.device)
        dtype = getattr(torch, self.precision)
        return name, partial(model.to(dtype), self.pixels.to(dtype))

    def eager(self) -> tuple[float | None, int | None]:
        """What people do: seconds and bytes of a forward pass that returns all attention weights."""
        dtype = getattr(torch, self.precision)
        model = transformers_model(self.shape, self.card.device, "eager").to(dtype)
        run = torch.inference_mode()(partial(model, self.pixels.to(dtype), output_attentions=True))
        seconds = self.card.attempt(run)
        return seconds, None if seconds is None else self.card.peak_bytes(run)

    def of_attention(self, model: Model) -> dict[str, Run]:
        """What needs the trace alone."""
        traces = model.network.encode(self.pixels).traces
        if self.batch > 1:
            first = analysis_of(model)
            analyses = [type(first)(model, first.prepared, first.logits, trace) for trace in traces]
            return {
                "rollout": partial(map_batch, analyses, "rollout"),
                "rollout, max, 90 % discarded": partial(
                    map_batch, analyses, "rollout", head_fusion="max", discard_ratio=0.9
                ),
                "CLS rows of all layers": lambda: [trace.rows("cls") for trace in traces],
            }
        analysis = analysis_of(model)

        def rollout(**options: str | float) -> object:
            # The first one, before an analysis keeps matrices.
            analysis.trace._cached_fused.clear()
            return analysis.map("rollout", **options)

        return {
            "picture to analysis": partial(analysis_of, model),
            "rollout": rollout,
            "rollout, max, 90 % discarded": partial(rollout, head_fusion="max", discard_ratio=0.9),
            "CLS rows of all layers": partial(analysis.trace.rows, "cls"),
            "sheet": analysis.attention_sheet,
        }

    def of_classes(self, model: Model, forward_seconds: float) -> dict[str, Run]:
        """What runs the network again, for one class."""

        def run(name: str) -> object:
            inputs = AttributionInput(model.network, self.pixels, class_target(0, self.shape.classes))
            return METHODS[name].compute(inputs if METHODS[name].requires == "inputs" else inputs.gradients)

        names = [name for name in CLASS_METHODS if METHODS[name].package is None or has(METHODS[name].package or "")]
        if has("captum") and (self.shape.tokens - 1) * forward_seconds < MAX_OCCLUSION_SECONDS:
            names.append("occlusion")
        return {METHODS[name].title: partial(run, name) for name in names}

    def report(self, floor_name: str, seconds: dict[str, float], peaks: dict[str, int | None]) -> None:
        case = f"{self.shape.title}, {self.shape.tokens:,} tokens, batch of {self.batch}"
        table = f"As multiples of the forward pass, {self.precision}"
        is_large = self.batch > 1 or self.shape.tokens >= B_14.tokens
        floor = seconds.pop(FLOOR)
        cells: dict[str, str | float | None] = {f"{FLOOR}, ms": 1e3 * floor, "reference": floor_name}
        cells[EAGER] = seconds.pop(EAGER) / floor if EAGER in seconds else "does not fit"
        cells[ANALYSIS] = held_to(seconds.pop(ANALYSIS) / floor, 1.2 if is_large else 1.5)
        cells.update({name: each / floor for name, each in seconds.items()})
        if self.batch == 1 and not has("captum"):
            cells |= {method.title: "captum is missing" for method in METHODS.values() if method.package == "captum"}
        self.card.add(table, case, cells)
        self.report_memory(case, peaks)

    def report_memory(self, case: str, peaks: dict[str, int | None]) -> None:
        floor, eager, analysis = peaks.pop(FLOOR), peaks[EAGER], peaks.get(ANALYSIS)
        cells: dict[str, str | float | None] = {f"{FLOOR}, MiB": floor / 2**20 if floor else None}
        cells |= {name: peak / floor if peak is not None and floor else None for name, peak in peaks.items()}
        if eager is None and floor:
            cells[EAGER] = "does not fit"
        share = analysis / eager if analysis and eager else None
        is_held = share is not None and self.shape.tokens == B_14.tokens
        cells["analysis, as a share of output_attentions"] = held_to(share, 0.25) if is_held and share else text(share)
        self.card.add(
            f"Peak memory beside the weights, as multiples of the forward pass, {self.precision}", case, cells
        )

"""A whole analysis, compared with a forward pass."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.benchmark import Benchmark, Case, Make, Run, Settings
from benchmarks.models import Models
from benchmarks.others import materialised_rollout, record_attention, vit_explain
from benchmarks.shapes import FIVE
from vitviz.attribution import rollout

FORWARD = "timm forward pass"
HOOKS = "timm hooks, matrices multiplied"
MEAN = "vitviz: trace, CLS rows, mean rollout"
MAX = "vitviz: trace, CLS rows, max rollout, 90% discarded"
# Above this size, keeping the attention weights of all layers needs more memory than many machines have.
MAX_MAP_BYTES = 4 * 2**30


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    models = Models(case.shape)
    makes: dict[str, Make] = {FORWARD: partial(timm_forward, models)}
    if case.shape.map_bytes < MAX_MAP_BYTES:
        makes["transformers, output_attentions, matrices multiplied"] = partial(_transformers, models)
        makes[HOOKS] = partial(timm_hooks, models)
        if settings.vit_explain is not None:
            makes["vit-explain, max, 90% discarded"] = partial(_vit_explain, models, settings.vit_explain)
    makes["vitviz: forward pass"] = partial(_forward, models)
    makes["vitviz: trace, CLS rows"] = partial(analysis, models, rolls_out=False)
    makes[MEAN] = partial(analysis, models)
    makes[MAX] = partial(analysis, models, head_fusion="max", discard_ratio=0.9)
    makes["vitviz in bfloat16: trace, CLS rows, mean rollout"] = partial(analysis, models, precision="bfloat16")
    return makes


def timm_forward(models: Models) -> Run:
    return torch.inference_mode()(partial(models.timm, models.pixels))


def timm_hooks(models: Models) -> Run:
    model, pixels = models.timm, models.pixels

    @torch.inference_mode()
    def run() -> object:
        with record_attention(model) as layers:
            return model(pixels), materialised_rollout(layers)

    return run


def _transformers(models: Models) -> Run:
    model, pixels = models.transformers, models.pixels

    @torch.inference_mode()
    def run() -> object:
        output = model(pixels, output_attentions=True)
        return output.logits, materialised_rollout(output.attentions)

    return run


def _vit_explain(models: Models, checkout: Path) -> Run:
    # Its hooks stay on the model, so it gets a model of its own.
    return partial(vit_explain(checkout, Models(models.shape).timm), models.pixels)


def _forward(models: Models) -> Run:
    return torch.inference_mode()(partial(models.vitviz.network, models.pixels))


def analysis(
    models: Models, engine: str = "own", precision: str = "float32", rolls_out: bool = True, **parameters: Any
) -> Run:
    """Logits, trace, the rows of all layers and heads, and a rollout."""
    is_plain = (engine, precision) == ("own", "float32")
    network, pixels = (models.vitviz if is_plain else models.open(engine, precision)).network, models.pixels

    @torch.inference_mode()
    def run() -> Any:
        encoding = network.encode(pixels)
        trace = encoding.traces[0]
        return encoding, trace.rows("cls"), rollout(trace, **parameters) if rolls_out else None

    return run


BENCHMARK = Benchmark(
    "analysis",
    "A whole analysis",
    "Logits, the attention of the CLS token in all layers and heads, and attention rollout, as ratios to timm's fused "
    "forward pass, which gives logits only. timm and vitviz have the same random weights, the others their own.",
    tuple(
        Case(shape, repeats, memory)
        for shape, repeats, memory in zip(FIVE, (15, 15, 7, 7, 5), (False, False, False, True, True), strict=True)
    ),
    contestants,
)

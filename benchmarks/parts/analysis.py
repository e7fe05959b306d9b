"""A whole analysis, in forward passes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import vitviz
from benchmarks.models import Models
from benchmarks.others import kept_weights, materialised_rollout, vit_explain
from benchmarks.part import Case, Make, Part, Run, Settings
from benchmarks.shapes import FIVE
from vitviz.attribution import rollout

FORWARD = "timm forward pass"
HOOKS = "timm hooks, matrices multiplied"
MEAN = "vitviz: trace, CLS rows, mean rollout"
MAX = "vitviz: trace, CLS rows, max rollout, 90% discarded"
# Beyond, the attention weights of all layers, kept as those packages do, take more than many machines have.
MOST_MAP_BYTES = 4 * 2**30
RECORDED_TOKENS = 1000


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    models = Models(case.shape, settings.folder)
    found: dict[str, Make] = {FORWARD: partial(timm_forward, models)}
    if case.shape.map_bytes < MOST_MAP_BYTES:
        found["transformers, output_attentions, matrices multiplied"] = partial(_transformers, models)
        found[HOOKS] = partial(timm_hooks, models)
    if case.shape.tokens < RECORDED_TOKENS:
        found["vit-pytorch Recorder, matrices multiplied"] = partial(_recorder, models)
    if settings.vit_explain is not None and case.shape.map_bytes < MOST_MAP_BYTES:
        found["vit-explain, max, 90% discarded"] = partial(_vit_explain, models, settings)
    found["vitviz: forward pass"] = partial(_forward, models)
    found["vitviz: trace, CLS rows"] = partial(_rows, models)
    found[MEAN] = partial(analysis, models)
    found[MAX] = partial(analysis, models, head_fusion="max", discard_ratio=0.9)
    found["vitviz in bfloat16: trace, CLS rows, mean rollout"] = partial(analysis, models, precision="bfloat16")
    return found


def timm_forward(models: Models) -> Run:
    return torch.inference_mode()(partial(models.timm, models.pixels))


def timm_hooks(models: Models) -> Run:
    model, pixels = models.timm, models.pixels

    @torch.inference_mode()
    def run() -> object:
        with kept_weights(model) as layers:
            return model(pixels), materialised_rollout(layers)

    return run


def _transformers(models: Models) -> Run:
    model, pixels = models.transformers, models.pixels

    @torch.inference_mode()
    def run() -> object:
        output = model(pixels, output_attentions=True)
        return output.logits, materialised_rollout(output.attentions)

    return run


def _recorder(models: Models) -> Run:
    model, pixels = models.vit_pytorch, models.pixels
    # Behind the model, which makes its package importable.
    from vit_pytorch.recorder import Recorder

    recorder = Recorder(model)

    @torch.inference_mode()
    def run() -> object:
        logits, weights = recorder(pixels)
        return logits, materialised_rollout(weights.unbind(1))

    return run


def _vit_explain(models: Models, settings: Settings) -> Run:
    assert settings.vit_explain is not None
    # It hooks its model for good, which must not be that of the others.
    return partial(vit_explain(settings.vit_explain, Models(models.shape, models.folder).timm), models.pixels)


def _forward(models: Models) -> Run:
    return torch.inference_mode()(partial(models.vitviz.network, models.pixels))


def _rows(models: Models) -> Run:
    network, pixels = models.vitviz.network, models.pixels

    @torch.inference_mode()
    def run() -> object:
        return _encoded(network, pixels)

    return run


def analysis(models: Models, precision: str = "float32", **parameters: Any) -> Run:
    """Logits, trace, the rows of all layers and heads, and a rollout."""
    model = models.vitviz if precision == "float32" else models.open(precision)
    pixels = models.pixels

    @torch.inference_mode()
    def run() -> object:
        encoding, rows = _encoded(model.network, pixels)
        return encoding, rows, rollout(encoding.traces[0], **parameters)

    return run


def _encoded(network: vitviz.VisionTransformer, pixels: torch.Tensor) -> tuple[Any, torch.Tensor]:
    encoding = network.encode(pixels)
    return encoding, encoding.traces[0].rows("cls")


PART = Part(
    "analysis",
    "A whole analysis",
    "Logits, the attention of the CLS token in all layers and heads, and attention rollout, as ratios to timm's fused "
    "forward pass, which gives logits only. timm and vitviz have the same random weights, the others their own.",
    tuple(
        Case(shape, repeats, memory)
        for shape, repeats, memory in zip(FIVE, (15, 15, 7, 7, 5), (False, False, False, True, True), strict=True)
    ),
    contestants,
    tried=(3,),
)

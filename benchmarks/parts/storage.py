"""What half precision costs in accuracy."""

from __future__ import annotations

import torch

import vitviz
from benchmarks.models import Models
from benchmarks.part import Case, Facts, Part, Settings
from benchmarks.shapes import B_16
from vitviz import AttentionTrace, VisionTransformer
from vitviz.attribution import rollout
from vitviz.weights.load import resources

KINDS = {
    "float16 trace": ("float32", "float16"),
    "bfloat16 trace": ("float32", "bfloat16"),
    "bfloat16 forward pass": ("bfloat16", None),
}


@torch.inference_mode()
def facts(case: Case, settings: Settings) -> Facts:
    models = Models(case.shape, settings.folder)
    bundled = vitviz.load()
    patch = bundled.network.config.patch_height
    photos = [
        bundled.preprocessing.prepare(vitviz.open_image(path), patch, patch).pixels
        for path in sorted(resources("assets").glob("*.jpg"))
    ]
    answers: Facts = {}
    for table, opened, images in (
        (f"{bundled.name}, {len(photos)} photographs", vitviz.load, photos),
        (f"{case.name}, random weights", models.open, [models.pixels]),
    ):
        exact = [_answers(opened().network.encode(pixels).traces[0]) for pixels in images]
        answers[table] = {
            kind: _worst(opened().network.set_precision(precision), storage, images, exact)
            for kind, (precision, storage) in KINDS.items()
        }
    return answers


def _answers(trace: AttentionTrace) -> dict[str, torch.Tensor]:
    return {
        "CLS rows": trace.rows("cls"),
        "mean rollout": rollout(trace).values,
        "max rollout, 90% discarded": rollout(trace, "max", 0.9).values,
    }


def _worst(
    network: VisionTransformer, storage: str | None, images: list[torch.Tensor], exact: list[dict[str, torch.Tensor]]
) -> dict[str, float]:
    """The largest absolute difference of each answer over all images."""
    found = [_answers(network.encode(pixels, storage).traces[0]) for pixels in images]
    return {
        what: max(float((ours[what] - true[what]).abs().max()) for ours, true in zip(found, exact, strict=True))
        for what in exact[0]
    }


PART = Part(
    "storage",
    "Half precision",
    "The largest absolute difference from single precision.",
    (Case(B_16, 1),),
    facts=facts,
)

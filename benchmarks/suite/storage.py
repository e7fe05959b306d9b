"""The error of half precision."""

from __future__ import annotations

import torch

import vitviz
from benchmarks.benchmark import Benchmark, Case, Facts, Settings
from benchmarks.models import Models
from benchmarks.shapes import B_16
from vitviz import AttentionTrace, VisionTransformer
from vitviz.attribution import rollout
from vitviz.weights import resources

PRECISIONS = {
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
    for table, open_model, images in (
        (f"{bundled.name}, {len(photos)} photographs", vitviz.load, photos),
        (f"{case.name}, random weights", models.open, [models.pixels]),
    ):
        exact = [_answers(open_model().network.encode(pixels).traces[0]) for pixels in images]
        answers[table] = {
            kind: _worst(open_model().network.set_precision(precision), storage, images, exact)
            for kind, (precision, storage) in PRECISIONS.items()
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
    answers = [_answers(network.encode(pixels, storage).traces[0]) for pixels in images]
    return {
        name: max(float((ours[name] - true[name]).abs().max()) for ours, true in zip(answers, exact, strict=True))
        for name in exact[0]
    }


BENCHMARK = Benchmark(
    "storage",
    "Half precision",
    "The largest absolute difference from single precision.",
    (Case(B_16, 1),),
    facts=facts,
)

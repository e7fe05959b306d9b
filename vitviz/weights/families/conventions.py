"""What several families share: standardisation of pixels, and what a classifier reads."""

from __future__ import annotations

from typing import Any

from vitviz.errors.kinds import CheckpointError
from vitviz.images.preprocessing import Fit
from vitviz.weights.conversion.canonical import MatchedCheckpoint
from vitviz.weights.metadata.normalisations import CLIP, HALVES, IMAGENET
from vitviz.weights.metadata.rules import PreprocessingRule


def imagenet(source: str, **options: Any) -> PreprocessingRule:
    return _convention(IMAGENET, source, **options)


def half(source: str, **options: Any) -> PreprocessingRule:
    return _convention(HALVES, source, **options)


def clip(source: str, **options: Any) -> PreprocessingRule:
    return _convention(CLIP, source, **options)


def _convention(
    moments: tuple[tuple[float, ...], tuple[float, ...]],
    source: str,
    fit: Fit = "crop",
    crop_fraction: float = 0.875,
    interpolation: str = "bicubic",
) -> PreprocessingRule:
    """The preprocessing of a family; arguments as of :class:`vitviz.Preprocessing`, for values in [0, 1]."""
    arguments = {"mean": moments[0], "std": moments[1], "fit": fit, "interpolation": interpolation}
    return PreprocessingRule(source, {**arguments, "crop_fraction": crop_fraction}, None)


def pooling_of_classifier(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    """The pooling that the classifier's width implies: DINOv2's may read the CLS token and the mean of the patches."""
    inputs = checkpoint.shape("classifier.weight")[1:]
    if not inputs or inputs[0] == width(checkpoint):
        return {}
    if inputs[0] == 2 * width(checkpoint):
        return {"pooling": "cls and mean"}
    raise CheckpointError(
        f"{checkpoint.name}: a classifier of {inputs[0]} features; expected {width(checkpoint)} (the CLS token) "
        f"or {2 * width(checkpoint)} (with the mean of the patches)"
    )


def width(checkpoint: MatchedCheckpoint) -> int:
    return checkpoint.shape("attention_norm.weight")[0] if checkpoint.has("attention_norm.weight") else 0

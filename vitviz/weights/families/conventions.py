"""What several families share: standardisation of pixels, names of activations."""

from __future__ import annotations

from typing import Any

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import choices, quote
from vitviz.images.preprocessing import Fit
from vitviz.weights.conversion.canonical import MatchedCheckpoint
from vitviz.weights.metadata.normalisations import CLIP, HALVES, IMAGENET
from vitviz.weights.metadata.rules import PreprocessingRule

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu tanh",
    "gelu_fast": "gelu tanh",
    "gelu_tanh": "gelu tanh",
    "gelu_pytorch_tanh": "gelu tanh",
    "quick_gelu": "quick gelu",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
}
"""Our names of activations, by the names of other packages."""


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


def activation(checkpoint: MatchedCheckpoint, name: object) -> str:
    """Our name of an activation in a configuration.

    Raises:
        CheckpointError: vitviz has no such activation.
    """
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise CheckpointError(
            f"{checkpoint.name}: activation {quote(name)} in its config.json; expected {choices(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


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

"""What several families share: standardisation of pixels, heads by width, activations by their names elsewhere."""

from __future__ import annotations

from typing import Any

from vitviz.errors import CheckpointError, choices, shown
from vitviz.weights.pieces import Found, Standard
from vitviz.weights.preparation import HALVES, IMAGENET

# Every published checkpoint of one of these widths has so many heads; other widths are asked for.
HEADS = {
    **{192: 3, 256: 4, 320: 5, 384: 6, 512: 8, 640: 10, 768: 12, 832: 13, 896: 14},
    **{1024: 16, 1152: 16, 1280: 16, 1408: 16, 1664: 16, 4096: 32},
}

DINOV3_HUGE = 1280

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
"""Names of activations elsewhere, and ours."""


def imagenet(source: str, **options: Any) -> Standard:
    return Standard(*IMAGENET, source, **options)


def half(source: str, **options: Any) -> Standard:
    return Standard(*HALVES, source, **options)


def size_of(value: object) -> tuple[int, int] | None:
    """Height and width that a configuration writes as one number or as several, the channels before them."""
    sides: Any = value if isinstance(value, list | tuple) else [value, value]
    if len(sides) < 2 or not all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in sides):
        return None
    return sides[-2], sides[-1]


def heads_of_dinov3(found: Found) -> int:
    """Heads of DINOv3, whose H+ has other heads than the CLIP models of its width."""
    if _width(found) == DINOV3_HUGE and "heads" not in found.told:
        return found.learn("heads", 20, "DINOv3's H+, 64 features a head")
    return heads_by_width(found)


def heads_by_width(found: Found) -> int:
    """Heads where only the width is known.

    Raises:
        CheckpointError: no published checkpoint has this width, and the user has not said.
    """
    width = _width(found)
    if "heads" in found.told or width not in HEADS:
        return found.ask("heads", f"{width} features wide, and the file does not say how many heads")
    return found.learn("heads", HEADS[width], f"every published checkpoint {width} features wide has {HEADS[width]}")


def activation(found: Found, name: object) -> str:
    """Our name of an activation that a configuration names.

    Raises:
        CheckpointError: vitviz does not know it.
    """
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise CheckpointError(
            f"{found.name}: activation {shown(name)} in its config.json; expected {choices(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def pooling_of_classifier(found: Found) -> dict[str, Any]:
    """DINOv2's linear classifier reads the CLS token and the mean of the patches, and is twice as wide."""
    inputs = found.stored("classifier.weight")[1:]
    if not inputs or inputs[0] == _width(found):
        return {}
    if inputs[0] == 2 * _width(found):
        return {"pooling": "cls and mean"}
    raise CheckpointError(
        f"{found.name}: a classifier of {inputs[0]} features; expected {_width(found)} (the CLS token) "
        f"or {2 * _width(found)} (with the mean of the patches)"
    )


def _width(found: Found) -> int:
    return found.stored("attention_norm.weight")[0] if found.has("attention_norm.weight") else 0

"""How pixels are standardised: the means and standard deviations of published checkpoints, by name."""

from typing import Any, Literal

HALVES = ((0.5,) * 3, (0.5,) * 3)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))

Normalisation = Literal["imagenet", "half", "clip", "none"]
NORMALISATIONS = {"imagenet": IMAGENET, "half": HALVES, "clip": CLIP, "none": ((0.0,) * 3, (1.0,) * 3)}
"""Means and standard deviations of red, green and blue, by the names that a user may state."""


def moments_of(normalisation: str, channels: int) -> dict[str, Any]:
    """``mean`` and ``std`` of the first channels, by a name in :data:`NORMALISATIONS`."""
    mean, std = NORMALISATIONS[normalisation]
    return {"mean": mean[:channels], "std": std[:channels]}

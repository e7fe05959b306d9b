"""The detector of pictures that are unlike the training images of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from vitviz.attention.precision import precise
from vitviz.attention.trace import AttentionTrace
from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import quote


def features_of(trace: AttentionTrace) -> torch.Tensor:
    """The features that the detector compares, ``"feature"``: the last layer's keys, averaged over the patches.

    A forward pass computes the keys anyway.
    """
    return precise(trace.keys[-1, :, trace.layout.prefix_count :]).mean(1).flatten().cpu()


def energy(logits: torch.Tensor) -> torch.Tensor:
    """The energy score, ``"..."``, of logits ``"... class"``: the logarithm of the sum of their exponentials.

    Liu et al. 2020, "Energy-based Out-of-distribution Detection", equation 4, negated: high for known pictures.
    """
    return logits.logsumexp(-1)


def squared_distance(features: torch.Tensor, mean: torch.Tensor, whitening: torch.Tensor) -> torch.Tensor:
    """The squared length, ``"..."``, of whitened features ``"... feature"``."""
    return ((features - mean) @ whitening).square().sum(-1)


@dataclass(frozen=True, eq=False)
class OODDetector:
    """Tells pictures like the training images of a model from out-of-distribution ones, by a score.

    The score is high for pictures like the training images::

        energy / energy_scale - distance**2 / distance_scale

    ``energy`` is :func:`energy` of the logits. ``distance`` is the Mahalanobis distance of the picture's features from
    the mean of those of the training images (Lee et al. 2018, "A Simple Unified Framework for Detecting
    Out-of-Distribution Samples and Adversarial Attacks", equation 2, with one Gaussian for all classes). The first is
    low for things that are like no class; the second is large for pictures of another kind, such as text, charts and
    noise, about which a network can be sure.

    Args:
        mean: ``"feature"``, of the features of training images.
        whitening: ``"feature feature"``; the distance is the length of ``(features - mean) @ whitening``.
        energy_scale, distance_scale: the difference of energies, and of squared distances, that changes the score by 1.
        threshold: the score below which a picture is out of distribution.

    Raises:
        ConfigError: the shapes contradict each other, a scale is not positive, or a value is not finite.
    """

    mean: torch.Tensor
    whitening: torch.Tensor
    energy_scale: float
    distance_scale: float
    threshold: float

    def __post_init__(self) -> None:
        size = len(self.mean) if self.mean.ndim == 1 else 0
        if self.whitening.shape != (size, size):
            shapes = f"a mean {tuple(self.mean.shape)} and a whitening {tuple(self.whitening.shape)}"
            raise ConfigError(f"OOD detector: {shapes}; expected 'feature' and 'feature feature'")
        if not (self.mean.isfinite().all() and self.whitening.isfinite().all()):
            raise ConfigError("OOD detector: values that are not finite in its mean or whitening")
        for name in ("energy_scale", "distance_scale", "threshold"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not math.isfinite(value) or (name != "threshold" and value <= 0):
                expected = "a number" if name == "threshold" else "a number above 0"
                raise ConfigError(f"OOD detector: {name} = {quote(value)}: expected {expected}")

    def score(self, logits: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """The scores of images, ``"..."``.

        Args:
            logits: ``"... class"``.
            features: ``"... feature"``, of :func:`features_of`.
        """
        distance = squared_distance(features, self.mean, self.whitening)
        return energy(logits) / self.energy_scale - distance / self.distance_scale

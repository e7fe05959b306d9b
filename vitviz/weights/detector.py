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
    """The features that the detector compares, ``"feature"``: the keys of a layer, averaged over the patches.

    A forward pass computes the keys anyway. The layer is at two thirds of the depth: earlier ones know colours and
    textures alone, and the last one is about the classes.
    """
    patches = precise(trace.keys[2 * trace.layers // 3, :, trace.layout.prefix_count :])
    return patches.mean(1).flatten().cpu()


def log_probability(logits: torch.Tensor) -> torch.Tensor:
    """The logarithm of the highest probability, ``"..."``, of logits ``"... class"``."""
    return logits.log_softmax(-1).amax(-1)


def squared_distance(features: torch.Tensor, mean: torch.Tensor, whitening: torch.Tensor) -> torch.Tensor:
    """The squared length, ``"..."``, of whitened features ``"... feature"``."""
    return ((features - mean) @ whitening).square().sum(-1)


@dataclass(frozen=True, eq=False)
class OODDetector:
    """Tells pictures like the training images of a model from out-of-distribution ones, by a score.

    The score is high for pictures like the training images::

        log(probability) / probability_scale - distance**2 / distance_scale

    ``probability`` is that of the most probable class (Hendrycks & Gimpel 2017, "A Baseline for Detecting Misclassified
    and Out-of-Distribution Examples"). ``distance`` is the Mahalanobis distance of the picture's features from the mean
    of those of the training images (Lee et al. 2018, "A Simple Unified Framework for Detecting Out-of-Distribution
    Samples and Adversarial Attacks", equation 2, with one Gaussian for all classes). The first is low for things
    between the classes; the second is large for pictures of another kind, such as text, charts and noise, about which
    a network can be sure.

    Args:
        mean: ``"feature"``, of the features of training images.
        whitening: ``"feature feature"``; the distance is the length of ``(features - mean) @ whitening``.
        probability_scale, distance_scale: standard deviation of the logarithm, and of the squared distance, over
            held-out images.
        threshold: the score below which a picture is out of distribution.

    Raises:
        ConfigError: the shapes contradict each other, a scale is not positive, or a value is not finite.
    """

    mean: torch.Tensor
    whitening: torch.Tensor
    probability_scale: float
    distance_scale: float
    threshold: float

    def __post_init__(self) -> None:
        size = len(self.mean) if self.mean.ndim == 1 else 0
        if self.whitening.shape != (size, size):
            shapes = f"a mean {tuple(self.mean.shape)} and a whitening {tuple(self.whitening.shape)}"
            raise ConfigError(f"OOD detector: {shapes}; expected 'feature' and 'feature feature'")
        if not (self.mean.isfinite().all() and self.whitening.isfinite().all()):
            raise ConfigError("OOD detector: values that are not finite in its mean or whitening")
        for name in ("probability_scale", "distance_scale", "threshold"):
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
        return log_probability(logits) / self.probability_scale - distance / self.distance_scale

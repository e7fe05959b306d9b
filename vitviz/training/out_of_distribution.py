"""Out-of-distribution scores, which tell pictures of a model's classes from others, and the detector of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from vitviz.images.preprocessing import Preprocessing
from vitviz.models.vit import VisionTransformer
from vitviz.training.data import LabelledImages
from vitviz.training.evaluate import logits_of
from vitviz.weights.detector import OODDetector, energy, features_of, squared_distance

SCORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "energy": energy,
    # Hendrycks et al. 2022, "Scaling Out-of-Distribution Detection for Real-World Settings".
    "highest logit": lambda logits: logits.amax(-1),
    # Hendrycks & Gimpel 2017, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples".
    "highest probability": lambda logits: logits.softmax(-1).amax(-1),
}
"""Scores ``"image"`` of logits ``"image class"``, by name; each should be higher for pictures of known classes."""

DETECTOR = "OOD detector"
"""Name of the score of a model's detector, which needs features as well."""

# Of the training images to which a detector is fitted; so many give a covariance of some hundred features.
MAX_FITTED = 5000
# Part of the mean variance that is added to each variance: features that hardly vary count less.
SHRINKAGE = 0.01
# Where probabilities or features never vary.
MIN_SCALE = 1e-6
# How much the energy counts, against the distance: at 1, photographs from other sources are called unlike too often.
ENERGY_SHARE = 2
# Fraction of held-out images below the threshold of a detector.
BELOW_THRESHOLD = 0.1


def fit_detector(training: torch.Tensor, logits: torch.Tensor, features: torch.Tensor) -> OODDetector:
    """The detector of a model, whose score is below the threshold for a tenth of the held-out images.

    Args:
        training: ``"image feature"``, features of training images.
        logits: ``"image class"``, calibrated, of held-out images.
        features: ``"image feature"``, of the same images.
    """
    mean = training.double().mean(0)
    covariance = torch.atleast_2d(torch.cov(training.double().T, correction=0))
    covariance += SHRINKAGE * covariance.diagonal().mean().clamp(min=1e-12) * torch.eye(len(mean)).double()
    whitening = torch.linalg.cholesky(torch.linalg.inv(covariance)).float()
    mean = mean.float()
    measured = energy(logits), squared_distance(features, mean, whitening)
    energy_std, distance_std = (max(float(values.double().std()), MIN_SCALE) for values in measured)
    detector = OODDetector(mean, whitening, energy_std / ENERGY_SHARE, distance_std, threshold=0.0)
    return replace(detector, threshold=float(detector.score(logits, features).double().quantile(BELOW_THRESHOLD)))


@torch.inference_mode()
def encode(
    network: VisionTransformer,
    preprocessing: Preprocessing,
    images: torch.Tensor,
    device: torch.device | None = None,
    batch_size: int = 16,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits ``"image class"`` of images, and the features ``"image feature"`` that a detector compares.

    Args:
        images: ``"image channel height width"``, uint8, of the model's input size.
    """
    logits, features = [], []
    for batch in images.split(batch_size):
        encoding = network.encode(preprocessing.standardise(batch.float() / 255).to(device or torch.device("cpu")))
        logits.append(encoding.logits.float().cpu())
        features += [features_of(trace) for trace in encoding.traces]
    return torch.cat(logits), torch.stack(features)


def logits_and_scores(
    network: VisionTransformer, preprocessing: Preprocessing, images: torch.Tensor, detector: OODDetector | None
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The logits ``"image class"`` of images, and every score ``"image"`` by name, with that of a detector if given.

    Args:
        images: ``"image channel height width"``, uint8, of the model's input size.
    """
    if detector is None:
        logits = logits_of(network, preprocessing, images, network.device)
        return logits, {name: score(logits) for name, score in SCORES.items()}
    logits, features = encode(network, preprocessing, images, network.device)
    scores = {name: score(logits) for name, score in SCORES.items()}
    return logits, {**scores, DETECTOR: detector.score(logits, features)}


def detector_of(
    network: VisionTransformer,
    preprocessing: Preprocessing,
    data: LabelledImages,
    test: LabelledImages,
    device: torch.device | None = None,
) -> OODDetector:
    """Fit the detector of a calibrated network to some of its training images, and its threshold to the test images.

    Args:
        network: its logits are calibrated.
        data, test: images of the model's input size.
    """
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:MAX_FITTED]
    _, training = encode(network, preprocessing, data.images[chosen], device)
    return fit_detector(training, *encode(network, preprocessing, test.images, device))


def area_under_curve(known: torch.Tensor, unknown: torch.Tensor) -> float:
    """The area under the ROC curve, in [0, 1]: how often a known picture scores above another one; a tie counts half.

    Mann & Whitney 1947.

    Args:
        known, unknown: scores of both kinds of pictures, each ``"image"``.
    """
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(known.double(), unknown.double()).statistic / (len(known) * len(unknown)))

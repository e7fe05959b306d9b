"""Calibration of a model's probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

# Number of equal-width bins in which probabilities are compared with accuracy.
BINS = 15
# With fewer images the fitted temperature is mostly noise.
MIN_IMAGES = 200
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0


@dataclass(frozen=True)
class Calibration:
    """Temperature and calibration error, measured on held-out images.

    Args:
        temperature: divisor of the logits.
        error_before, error_after: expected calibration error without and with the temperature, in [0, 1]. The second is
            measured on images that its temperature was not fitted to.
    """

    temperature: float
    error_before: float
    error_after: float

    @property
    def summary(self) -> str:
        """One line for a model card."""
        error = f"expected calibration error {self.error_after:.1%}, {self.error_before:.1%} without the temperature"
        return f"temperature {self.temperature:.3f}, {error}"


def calibrate(logits: torch.Tensor, targets: torch.Tensor) -> Calibration | None:
    """Fit a temperature to held-out images; None for fewer than 200 images, or where one half of them has no mistake.

    The error with the temperature is cross-validated. The images with even and odd indices form two halves, and each
    half is scaled by the temperature fitted to the other.

    Args:
        logits: ``"image class"``.
        targets: ``"image"``, class indices.
    """
    halves = [(logits[start::2], targets[start::2]) for start in (0, 1)]
    if len(targets) < MIN_IMAGES or any(bool((half.argmax(-1) == classes).all()) for half, classes in halves):
        return None
    scaled = torch.empty_like(logits)
    for start, (half, classes) in enumerate(reversed(halves)):
        scaled[start::2] = logits[start::2] / temperature(half, classes)
    fitted = temperature(logits, targets)
    return Calibration(fitted, calibration_error(logits, targets), calibration_error(scaled, targets))


def temperature(logits: torch.Tensor, targets: torch.Tensor) -> float:
    """The divisor of the logits that minimises the cross-entropy, between 0.05 and 20.

    Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2.
    """
    low, high = torch.tensor([MIN_TEMPERATURE, MAX_TEMPERATURE], dtype=torch.float64).log().tolist()
    logits = logits.double()

    def loss(exponent: float) -> float:
        return float(F.cross_entropy(logits / torch.tensor(exponent).exp(), targets))

    # The cross-entropy has a single minimum in the temperature.
    while high - low > 1e-4:
        lower, upper = low + (high - low) / 3, high - (high - low) / 3
        if loss(lower) < loss(upper):
            high = upper
        else:
            low = lower
    return float(torch.tensor((low + high) / 2).exp())


def calibration_error(logits: torch.Tensor, targets: torch.Tensor, bins: int = BINS) -> float:
    """Expected calibration error, in [0, 1].

    The predictions are binned by the probability of the most probable class. The error is the distance between
    the mean of that probability and the accuracy, averaged over the bins by their number of images. Guo et al. 2017,
    equation 3.

    Args:
        logits: ``"image class"``.
        targets: ``"image"``, class indices.
        bins: number of bins of equal width.
    """
    probability, predicted = logits.double().softmax(-1).max(-1)
    correct = (predicted == targets).double()
    bin_indices = (probability * bins).ceil().long().clamp(1, bins) - 1
    distances = torch.zeros(bins, dtype=torch.float64).index_add_(0, bin_indices, correct - probability)
    return float(distances.abs().sum() / len(targets))

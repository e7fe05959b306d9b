"""Calibration of a model's probabilities, and its threshold for out-of-distribution images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

# Bins of equal width in which probabilities are compared with how often they are right.
BINS = 15
# Share of held-out images below the out-of-distribution threshold.
MISTAKEN = 0.1
# With fewer images the fitted temperature is mostly noise.
MIN_IMAGES = 200
# Bounds of the temperature.
LOWEST, HIGHEST = 0.05, 20.0


@dataclass(frozen=True)
class Calibration:
    """What held-out images say of a model's probabilities.

    Args:
        temperature: by which the logits are to be divided.
        error_before, error_after: expected calibration error without and with it, in [0, 1]; the second is measured on
            images that its temperature was not fitted to.
        ood_threshold: the energy score that all but a tenth of the images exceed, of logits divided by the
            temperature; :attr:`vitviz.Analysis.energy_score` defines it.
    """

    temperature: float
    error_before: float
    error_after: float
    ood_threshold: float

    @property
    def summary(self) -> str:
        """One line for a model card."""
        error = f"expected error {self.error_after:.1%}, without it {self.error_before:.1%}"
        return f"temperature {self.temperature:.3f}, {error}"


def calibrate(logits: torch.Tensor, targets: torch.Tensor) -> Calibration | None:
    """Fit a temperature to held-out images; None where they are fewer than 200, or hardly one is mistaken.

    The error with it is measured crosswise: each half of the images, every second one, with the temperature of the
    other half.

    Args:
        logits: ``"image class"``.
        targets: ``"image"``, class indices.
    """
    halves = [(logits[start::2], targets[start::2]) for start in (0, 1)]
    if len(targets) < MIN_IMAGES or any(bool((each.argmax(-1) == known).all()) for each, known in halves):
        return None
    scaled = torch.empty_like(logits)
    for start, (fitted, known) in enumerate(reversed(halves)):
        scaled[start::2] = logits[start::2] / temperature(fitted, known)
    found = temperature(logits, targets)
    energy_score = (logits / found).logsumexp(-1)
    least = float(energy_score.double().quantile(MISTAKEN))
    return Calibration(found, calibration_error(logits, targets), calibration_error(scaled, targets), least)


def temperature(logits: torch.Tensor, targets: torch.Tensor) -> float:
    """The number by which logits are divided for the least cross-entropy, between 0.05 and 20.

    Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2.
    """
    low, high = torch.tensor([LOWEST, HIGHEST], dtype=torch.float64).log().tolist()
    logits = logits.double()

    def loss(exponent: float) -> float:
        return float(F.cross_entropy(logits / torch.tensor(exponent).exp(), targets))

    # The cross-entropy has a single minimum in the temperature.
    while high - low > 1e-4:
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if loss(left) < loss(right):
            high = right
        else:
            low = left
    return float(torch.tensor((low + high) / 2).exp())


def calibration_error(logits: torch.Tensor, targets: torch.Tensor, bins: int = BINS) -> float:
    """Expected calibration error, in [0, 1].

    The mean distance between how probable the most probable class is said to be and how often it is right, over bins
    of that probability. Guo et al. 2017, equation 3.

    Args:
        logits: ``"image class"``.
        targets: ``"image"``, class indices.
        bins: of equal width.
    """
    probability, chosen = logits.double().softmax(-1).max(-1)
    right = (chosen == targets).double()
    places = (probability * bins).ceil().long().clamp(1, bins) - 1
    distances = torch.zeros(bins, dtype=torch.float64).index_add_(0, places, right - probability)
    return float(distances.abs().sum() / len(targets))


def divide(classifier: nn.Linear, by: float) -> None:
    """Have a classifier give its logits divided by a temperature."""
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.div_(by)

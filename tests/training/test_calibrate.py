"""Calibration of probabilities."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitviz.training.calibrate import MAX_TEMPERATURE, MIN_TEMPERATURE, calibrate, calibration_error, temperature

pytestmark = pytest.mark.slow


def calibrated_logits(count: int, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Random logits, and targets drawn with their probabilities."""
    logits = 2 * torch.randn(count, classes)
    return logits, torch.distributions.Categorical(logits=logits).sample()


@pytest.mark.parametrize("factor", [0.3, 1.0, 2.5])
def test_the_temperature_undoes_what_the_logits_were_multiplied_with(factor: float) -> None:
    logits, targets = calibrated_logits(40_000)
    assert temperature(factor * logits, targets) == pytest.approx(factor, rel=0.03)


def test_no_other_temperature_has_a_lower_cross_entropy() -> None:
    logits, targets = calibrated_logits(500)
    best = temperature(3 * logits, targets)
    losses = [float(F.cross_entropy(3 * logits.double() / best / by, targets)) for by in (0.99, 1.0, 1.01)]
    assert min(losses) == losses[1]


def test_the_temperature_stays_within_its_bounds() -> None:
    targets = torch.arange(12) % 3
    right = 0.5 * F.one_hot(targets, 3).float()
    assert temperature(right, targets) == pytest.approx(MIN_TEMPERATURE, rel=1e-3)
    assert temperature(-right, targets) == pytest.approx(MAX_TEMPERATURE, rel=1e-3)


def binned(logits: np.ndarray, targets: np.ndarray, bins: int) -> float:
    """The expected calibration error, bin by bin."""
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    confidence, correct = probabilities.max(1), probabilities.argmax(1) == targets
    error = 0.0
    for low, high in pairwise(np.linspace(0, 1, bins + 1)):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            error += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    return error


@pytest.mark.parametrize("bins", [1, 2, 15])
def test_the_calibration_error_is_the_distance_of_confidence_and_accuracy(bins: int) -> None:
    logits, targets = calibrated_logits(300)
    expected = binned(3 * logits.double().numpy(), targets.numpy(), bins)
    assert calibration_error(3 * logits.double(), targets, bins) == pytest.approx(expected, abs=1e-9)


def test_calibrated_logits_have_a_small_error_and_overconfident_ones_a_large_one() -> None:
    logits, targets = calibrated_logits(40_000)
    assert calibration_error(logits, targets) < 0.01 < 0.1 < calibration_error(3 * logits, targets)


def test_the_second_error_is_of_images_that_the_temperature_was_not_fitted_to() -> None:
    logits, targets = calibrated_logits(2000)
    logits[::2] *= 3
    found = calibrate(logits, targets)
    assert found is not None
    first, second = (temperature(logits[start::2], targets[start::2]) for start in (0, 1))
    crossed = logits.clone()
    crossed[::2] /= second
    crossed[1::2] /= first
    assert found.error_after == pytest.approx(calibration_error(crossed, targets))
    assert found.error_before == calibration_error(logits, targets)
    assert found.temperature == temperature(logits, targets)


def test_too_few_images_or_mistakes_calibrate_nothing() -> None:
    logits, targets = calibrated_logits(199)
    assert calibrate(logits, targets) is None
    logits, targets = calibrated_logits(400)
    targets[1::2] = logits[1::2].argmax(-1)
    assert calibrate(logits, targets) is None
    targets[1] = logits[1].argmin()
    assert calibrate(logits, targets) is not None

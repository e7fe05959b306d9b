"""Calibration of probabilities, and detection of images unlike those of the training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import vitviz
from vitviz import Analysis, Model
from vitviz.errors.kinds import CheckpointError, ConfigError, MethodError
from vitviz.training.calibrate import (
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    calibrate,
    calibration_error,
    divide,
    temperature,
)
from vitviz.ui import build_demo
from vitviz.ui.explorer import Explorer
from vitviz.weights import load_checkpoint, save_checkpoint

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


def test_the_calibration_error_is_the_distance_of_confidence_and_accuracy() -> None:
    # One bin has confidence 0.9 and accuracy 0.5, the other confidence 0.6 and accuracy 1.
    summary = torch.tensor([[0.9, 0.1]] * 4 + [[0.4, 0.6]] * 4).log()
    targets = torch.tensor([0, 1, 0, 1, 1, 1, 1, 1])
    assert calibration_error(summary, targets) == pytest.approx((0.4 + 0.4) / 2)
    # In one bin, both lean the same way and nothing is lost.
    assert calibration_error(summary, targets, bins=1) == pytest.approx(0.0, abs=1e-6)


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


def test_a_tenth_of_the_images_lies_below_the_ood_threshold() -> None:
    logits, targets = calibrated_logits(1000)
    found = calibrate(logits, targets)
    assert found is not None
    energy = (logits / found.temperature).logsumexp(-1)
    assert int((energy < found.ood_threshold).sum()) == 100


def test_too_few_images_or_mistakes_calibrate_nothing() -> None:
    logits, targets = calibrated_logits(199)
    assert calibrate(logits, targets) is None
    logits, targets = calibrated_logits(400)
    targets[1::2] = logits[1::2].argmax(-1)
    assert calibrate(logits, targets) is None
    targets[1] = logits[1].argmin()
    assert calibrate(logits, targets) is not None


def test_a_divided_classifier_gives_divided_logits(make_model: Callable[..., Model]) -> None:
    network, pixels = make_model().network, torch.randn(2, 3, 16, 24)
    before = network(pixels)
    assert isinstance(network.classifier, torch.nn.Linear)
    divide(network.classifier, 0.4)
    torch.testing.assert_close(network(pixels), before / 0.4)


# Out-of-distribution images.


@pytest.fixture
def picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (16, 24, 3), dtype=np.uint8)


def test_a_picture_with_a_low_energy_score_is_out_of_distribution(
    make_model: Callable[..., Model], picture: np.ndarray
) -> None:
    model = make_model()

    def analysis_with(threshold: float | None) -> Analysis:
        return vitviz.analyze(picture, replace(model, ood_threshold=threshold))

    logits = analysis_with(None).logits.double().numpy()
    energy = math.log(np.exp(logits).sum())
    assert analysis_with(None).energy_score == pytest.approx(energy, rel=1e-5)
    assert [analysis_with(threshold).is_out_of_distribution for threshold in (None, energy + 0.01, energy - 0.01)] == [
        None,
        True,
        False,
    ]


def test_a_model_without_a_classifier_has_no_energy_score(
    make_model: Callable[..., Model], picture: np.ndarray
) -> None:
    analysis = vitviz.analyze(picture, make_model(classes=0))
    assert analysis.is_out_of_distribution is None
    with pytest.raises(MethodError, match="has no classifier: it has no energy score"):
        _ = analysis.energy_score


def test_a_checkpoint_keeps_its_ood_threshold(make_model: Callable[..., Model], tmp_path: Path) -> None:
    for threshold in (None, 3.25):
        save_checkpoint(tmp_path / "small.safetensors", replace(make_model(), ood_threshold=threshold))
        assert load_checkpoint(tmp_path / "small.safetensors").ood_threshold == threshold


@pytest.mark.parametrize("threshold", [math.nan, math.inf, "3", True, [3]])
def test_an_invalid_ood_threshold_is_refused(
    make_model: Callable[..., Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold: object
) -> None:
    model = make_model()
    with pytest.raises(ConfigError, match=r"ood_threshold = .*: expected a number, of a classifier"):
        replace(model, ood_threshold=threshold)
    object.__setattr__(model, "ood_threshold", threshold)
    save_checkpoint(tmp_path / "small.safetensors", model)
    with pytest.raises(CheckpointError, match=r"small\.safetensors: its header .* ood_threshold = "):
        load_checkpoint(tmp_path / "small.safetensors")


def test_without_classes_there_is_no_evidence_to_compare_with(make_model: Callable[..., Model]) -> None:
    with pytest.raises(ConfigError, match="of a classifier"):
        replace(make_model(classes=0), ood_threshold=3.0)


def test_the_page_knows_whether_a_picture_is_out_of_distribution(bundled: Model) -> None:
    for threshold, is_unlike in ((None, None), (-1e9, False), (1e9, True)):
        demo = build_demo(replace(bundled, ood_threshold=threshold))
        [value] = [block.value for block in demo.blocks.values() if isinstance(block, Explorer)]
        assert value["views"][0]["is_out_of_distribution"] is is_unlike

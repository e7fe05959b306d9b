"""Accuracy, loss and calibration are what NumPy computes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.support.training import PLAIN, counted
from vitviz import (
    DataError,
    Preprocessing,
    VisionTransformer,
)
from vitviz.training.data import LabelledImages
from vitviz.training.evaluate import Accuracy, evaluate
from vitviz.training.watch import SIDE, attention_picture

# Evaluation.


@pytest.mark.parametrize("batch_size", [1, 4, 13, 250])
def test_evaluation_is_what_numpy_computes(make_network: Callable[..., VisionTransformer], batch_size: int) -> None:
    network = make_network()
    preprocessing = Preprocessing(16, 24, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    images = torch.randint(0, 256, (13, 3, 16, 24), dtype=torch.uint8)
    data = LabelledImages(images, torch.arange(13) % 5, ("a", "b", "c", "d", "e"))
    found = evaluate(network, preprocessing, data, batch_size=batch_size)

    mean, std = (np.array(part)[:, None, None] for part in (preprocessing.mean, preprocessing.std))
    pixels = (images.numpy() / 255 - mean) / std
    logits = network(torch.from_numpy(pixels).float()).double().numpy()
    targets = data.targets.numpy()
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    right = logits.argmax(1) == targets
    assert 0 < right.sum() < 13, "a test set on which every mistake shows"
    assert found.images == 13
    assert found.top1 == pytest.approx(right.mean())
    assert found.loss == pytest.approx(-np.log(probabilities[range(13), targets]).mean(), rel=1e-4)
    assert found.per_class == {
        label: pytest.approx(right[targets == index].mean()) for index, label in enumerate(data.labels)
    }
    assert found.counts == {"a": 3, "b": 3, "c": 3, "d": 2, "e": 2}
    assert found.calibration_error == pytest.approx(binned(probabilities, targets), abs=1e-6)


def binned(probabilities: np.ndarray, targets: np.ndarray) -> float:
    """The expected calibration error, bin by bin."""
    most, right = probabilities.max(1), probabilities.argmax(1) == targets
    edges, error = np.linspace(0, 1, 16), 0.0
    for low, high in pairwise(edges):
        inside = (most > low) & (most <= high)
        if inside.any():
            error += inside.mean() * abs(most[inside].mean() - right[inside].mean())
    return error


@pytest.mark.parametrize(
    ("share", "count", "low", "high"),
    # Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I.
    [
        (81 / 263, 263, 0.2553, 0.3662),
        (15 / 148, 148, 0.0624, 0.1605),
        (0.0, 20, 0.0, 0.1611),
        (1 / 29, 29, 0.0061, 0.1718),
    ],
)
def test_an_interval_is_wilsons(share: float, count: int, low: float, high: float) -> None:
    found = Accuracy(share, 0.0, count, {"cat": share}, {"cat": count}, 0.0)
    assert found.interval() == found.interval("cat")
    assert found.interval() == pytest.approx((low, high), abs=6e-5)


def test_evaluation_refuses_images_of_other_classes(make_network: Callable[..., VisionTransformer]) -> None:
    with pytest.raises(DataError, match="3 classes in the images, 5 in the model"):
        evaluate(make_network(), PLAIN, counted(3))


def test_the_picture_of_the_log_has_every_class_above_its_attention(
    make_network: Callable[..., VisionTransformer],
) -> None:
    network = make_network(image_height=8, image_width=8, classes=3, register_tokens=1)
    picture = attention_picture(network, PLAIN, counted(6))
    assert picture.shape == (3, 2 * SIDE, 3 * SIDE)
    assert picture.dtype == np.uint8
    above = picture[:, :SIDE].reshape(3, SIDE, 3, SIDE)
    np.testing.assert_array_equal(above, np.broadcast_to(np.array([10, 20, 30])[None, None, :, None], above.shape))
    assert all(below.std() > 5 for below in np.split(picture[:, SIDE:], 3, axis=2))

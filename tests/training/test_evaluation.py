"""Accuracy, loss and calibration are what NumPy computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.training import PLAIN, grey_images
from vitviz import DataError, Preprocessing, VisionTransformer
from vitviz.training.calibrate import calibration_error
from vitviz.training.data import LabelledImages
from vitviz.training.evaluate import Accuracy, evaluate, logits_of

# Evaluation.


@pytest.mark.parametrize("batch_size", [1, 4, 13, 250])
def test_evaluation_is_what_numpy_computes(make_network: Callable[..., VisionTransformer], batch_size: int) -> None:
    network = make_network()
    preprocessing = Preprocessing(16, 24, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    images = torch.randint(0, 256, (13, 3, 16, 24), dtype=torch.uint8)
    data = LabelledImages(images, torch.arange(13) % 5, ("a", "b", "c", "d", "e"))
    found = evaluate(network, preprocessing, data, batch_size=batch_size)

    mean, std = (np.array(values)[:, None, None] for values in (preprocessing.mean, preprocessing.std))
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
    assert found.calibration_error == pytest.approx(calibration_error(torch.from_numpy(logits), data.targets), abs=1e-6)


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
    found = Accuracy(share, 0.0, count, {"cat": share}, {"cat": count}, 0.0, 1.0)
    assert found.interval() == found.interval("cat")
    assert found.interval() == pytest.approx((low, high), abs=6e-5)


def test_classes_are_measured_together(make_network: Callable[..., VisionTransformer]) -> None:
    network = make_network(classes=8)
    images = torch.randint(0, 256, (40, 3, 16, 24), dtype=torch.uint8)
    best = logits_of(network, PLAIN, images).topk(6).indices
    # One of six images is correct, and five have their class among the top five.
    data = LabelledImages(images, best[range(40), torch.arange(40) % 6], tuple("abcdefgh"))
    logits = logits_of(network, PLAIN, data.images).numpy()
    found = evaluate(network, PLAIN, data)
    targets = data.targets.numpy()
    together = [data.labels[index] for index in np.unique(targets)[:2]]
    in_subset = np.isin(targets, np.unique(targets)[:2])
    share, count = found.of(together)
    assert count == in_subset.sum()
    assert share == pytest.approx((logits.argmax(1) == targets)[in_subset].mean())
    assert found.interval(*together)[0] < share < found.interval(*together)[1]
    assert found.top5 == pytest.approx((np.argsort(-logits, axis=1)[:, :5] == targets[:, None]).any(1).mean())
    assert found.top1 < found.top5 < 1
    with pytest.raises(DataError, match="class 'z': expected one of a, b, c"):
        found.of(("b", "z"))


def test_evaluation_refuses_images_of_other_classes(make_network: Callable[..., VisionTransformer]) -> None:
    with pytest.raises(DataError, match="3 classes in the images, 5 in the model"):
        evaluate(make_network(), PLAIN, grey_images(3))


def test_examples_are_the_first_image_of_each_of_the_first_classes() -> None:
    data = grey_images(6)
    assert [int(each[0, 0, 0]) for each in data.examples(2)] == [10, 20]
    assert data.examples(8)[2].shape == (8, 8, 3)
    # A class may have no image.
    assert len(replace(data, targets=data.targets.clamp(max=1)).examples(8)) == 2

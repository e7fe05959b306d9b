"""Soft labels of a teacher: which files are taken, and what a run makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.training import PLAIN, SMALL, TrainedRun, curves, grey_images, interrupt_step, same_weights
from vitviz import CheckpointError, DataError
from vitviz.training import loop
from vitviz.training.config import Augmentation
from vitviz.training.data import read_image_folder, training_batches
from vitviz.training.soft_labels import SoftLabels, feature_distance, read_soft_labels
from vitviz.training.state import Run

LABELS = ("blue", "green", "red")
PATHS = tuple(f"{label}/{number}.png" for label in LABELS for number in range(12))
Arrays = dict[str, Any]


def arrays(seed: int = 0) -> Arrays:
    """Probabilities of every image of the folder of squares, by chance."""
    probability = np.random.default_rng(seed).dirichlet([1, 1, 1], len(PATHS))
    return {"labels": np.array(LABELS), "path": np.array(PATHS), "probability": probability.astype(np.float32)}


def with_features(seed: int = 0, count: int = 5) -> Arrays:
    """The same with features of every image, by chance."""
    return {**arrays(), "features": np.random.default_rng(seed).normal(size=(len(PATHS), count))}


def taught_by(content: Arrays) -> SoftLabels:
    probabilities, features = (torch.from_numpy(content[name]).half() for name in ("probability", "features"))
    return SoftLabels(probabilities, torch.nn.functional.normalize(features.float(), dim=1).half(), "")


def written(folder: Path, content: Arrays) -> Path:
    path = folder / "soft.npz"
    np.savez(path, **content)
    return path


def test_probabilities_and_features_come_in_the_order_of_the_images(folder: Path, tmp_path: Path) -> None:
    content = with_features()
    content["features"][3] = 0
    order = np.random.default_rng(1).permutation(len(PATHS))
    shuffled = {name: values if name == "labels" else values[order] for name, values in content.items()}
    # An image that is not there may have a row.
    shuffled["path"] = np.append(shuffled["path"], "blue/none.png")
    shuffled["probability"] = np.vstack([shuffled["probability"], [0, 0, 0]])
    shuffled["features"] = np.vstack([shuffled["features"], [np.nan] * 5])
    data = read_image_folder(folder, "train", PLAIN, 2, 2)
    assert sorted(data.paths) == sorted(PATHS)
    found = read_soft_labels(written(tmp_path, shuffled), data.paths, data.labels)
    rows = [PATHS.index(path) for path in data.paths]
    assert torch.equal(found.probabilities, torch.from_numpy(content["probability"][rows]).half())
    lengths = np.linalg.norm(content["features"], axis=1, keepdims=True)
    lengths[3] = 1
    expected = torch.from_numpy((content["features"] / lengths)[rows])
    torch.testing.assert_close(found.features.double(), expected, rtol=1e-3, atol=1e-6)
    assert (found.features[rows.index(3)] == 0).all()


def of_first_row(*values: float) -> Callable[[Arrays], Arrays]:
    def changed(content: Arrays) -> Arrays:
        content["probability"][0] = values
        return content

    return changed


REFUSED: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "no paths": (lambda content: {key: content[key] for key in ("labels", "probability")}, "no array 'path' in it"),
    "pickled": (lambda content: {**content, "path": np.array([*PATHS], object)}, "damaged, or no .npz file"),
    "other labels": (
        lambda content: {**content, "labels": np.array(["blue", "green", "pink"])},
        "expected the 3 training classes; only one of them has pink, red",
    ),
    "other order": (
        lambda content: {**content, "labels": np.array(["green", "blue", "red"])},
        "expected the 3 training classes, in this order",
    ),
    "numbers as labels": (lambda content: {**content, "labels": np.arange(3)}, "expected the 3 training classes"),
    "numbers as paths": (lambda content: {**content, "path": np.arange(36)}, "path is .* expected a list of text"),
    "fewer classes": (
        lambda content: {**content, "probability": content["probability"][:, :2]},
        r"probability is .*\(36, 2\).* expected floats of shape \(36, 3\)",
    ),
    "integers": (
        lambda content: {**content, "probability": np.eye(3, dtype=int).repeat(12, 0)},
        "probability is .* of int64; expected floats",
    ),
    "an image without a row": (
        lambda content: {**content, "path": np.array([*PATHS[:-1], "red/99.png"])},
        "no soft label of 1 training images, such as 'red/11.png'",
    ),
    "logits": (of_first_row(3, 2, 1), "row of 'blue/0.png' sums to 6, its least number is 1; expected probabilities"),
    "below 0": (of_first_row(1.5, -0.5, 0), "row of 'blue/0.png' sums to 1, its least number is -0.5"),
    "features of fewer images": (
        lambda content: {**content, "features": np.ones((35, 2))},
        "features is .* of float64; expected floats of 36 images",
    ),
    "features as integers": (
        lambda content: {**content, "features": np.ones((36, 2), int)},
        "features is .* of int64; expected floats",
    ),
    "an infinite feature": (
        lambda content: {**content, "features": np.array([*[[1.0, 0.0]] * 35, [0.0, np.inf]])},
        "the features of 'red/11.png' are not all finite",
    ),
    "not a number": (of_first_row(np.nan, 1, 0), "row of 'blue/0.png' sums to nan"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_does_not_fit_is_refused_before_the_run(
    folder: Path, tmp_path: Path, change: Callable[[Arrays], Arrays], message: str
) -> None:
    path = written(tmp_path, change(arrays()))
    with pytest.raises(DataError, match=message) as caught:
        loop.train(folder, tmp_path / "run", SMALL, soft_labels=path)
    assert str(path) in str(caught.value) and not (tmp_path / "run").exists()


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file; expected soft labels as an \.npz file"):
        read_soft_labels(tmp_path / "none.npz", PATHS, LABELS)
    whole = written(tmp_path, arrays()).read_bytes()
    np.save(tmp_path / "plain.npy", np.eye(3))
    for content in (b"", b"text", whole[:-30], (tmp_path / "plain.npy").read_bytes()):
        (tmp_path / "odd.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"odd\.npz: damaged, or no \.npz file of soft labels"):
            read_soft_labels(tmp_path / "odd.npz", PATHS, LABELS)


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_targets_are_the_label_and_the_teacher_by_their_weights(weight: float) -> None:
    soft = taught_by(with_features())
    plain = Augmentation(jitter=0, mix=0)
    arguments = (grey_images(12), PLAIN, plain, 4, (8,), 0.3, 5)
    order = torch.arange(12)
    with_soft = training_batches(*arguments, order=order, soft_labels=soft, soft_label_weight=weight)
    without = training_batches(*arguments, order=order)
    for start, ((pixels, targets), (same, labels)) in zip((0, 4, 8), zip(with_soft, without, strict=True), strict=True):
        assert torch.equal(pixels, same)
        rows = slice(start, start + 4)
        torch.testing.assert_close(targets[:, :3], (1 - weight) * labels + weight * soft.probabilities[rows].float())
        assert torch.equal(targets[:, 3:], soft.features[rows].float())


def test_mixed_images_have_mixed_soft_labels() -> None:
    """Mixing is linear: what is mixed of one-hot labels is mixed of the teacher's in the same proportion."""
    soft = taught_by(with_features())
    arguments = (grey_images(24), PLAIN, Augmentation(mix=1.0), 12, (8,), 0.0, 3)
    order = torch.arange(24)
    taught = list(training_batches(*arguments, order=order, soft_labels=soft, soft_label_weight=1.0))
    plain = list(training_batches(*arguments, order=order))
    own = torch.eye(3)[torch.arange(24) % 3]
    for start, (_, targets), (_, labels) in zip((0, 12), taught, plain, strict=True):
        rows = slice(start, start + 12)
        mine, teacher = own[rows], torch.cat([soft.probabilities[rows], soft.features[rows]], 1).float()
        # The first image is of another class than the last, so that its target tells the share.
        share = float(labels[0, start % 3])
        torch.testing.assert_close(labels, share * mine + (1 - share) * mine.flip(0))
        torch.testing.assert_close(targets, share * teacher + (1 - share) * teacher.flip(0))


@pytest.mark.slow
def test_a_run_learns_what_its_teacher_says(folder: Path, tmp_path: Path) -> None:
    """A teacher that takes each colour for the next one is believed as far as its weight goes."""
    turned = np.eye(3, dtype=np.float32)[[1, 2, 0]].repeat(12, 0)
    path = written(tmp_path, {**arrays(), "probability": turned})
    believed = replace(SMALL, soft_label_weight=1.0)
    _, accuracy = loop.train(folder, tmp_path / "believed", believed, soft_labels=path)
    assert accuracy.top1 <= 0.1
    _, accuracy = loop.train(folder, tmp_path / "not", replace(SMALL, soft_label_weight=0.1), soft_labels=path)
    assert accuracy.top1 >= 0.9


@pytest.mark.slow
def test_a_run_without_soft_labels_does_not_depend_on_their_weight(
    finished: TrainedRun, folder: Path, tmp_path: Path
) -> None:
    model, _ = loop.train(folder, tmp_path, replace(SMALL, soft_label_weight=0.9))
    assert same_weights(model.network, finished.model.network)


@pytest.mark.slow
def test_a_run_resumes_with_the_same_soft_labels_only(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, arrays())
    whole, _ = loop.train(folder, tmp_path / "whole", SMALL, soft_labels=path)
    with monkeypatch.context() as patch:
        interrupt_step(patch, epoch=2)
        with pytest.raises(KeyboardInterrupt):
            loop.train(folder, tmp_path / "resumed", SMALL, soft_labels=path)
    with pytest.raises(CheckpointError, match=r"soft labels was [0-9a-f]{16}, now None"):
        loop.train(folder, tmp_path / "resumed", SMALL)
    (tmp_path / "other").mkdir()
    other = written(tmp_path / "other", arrays(seed=1))
    with pytest.raises(CheckpointError, match=r"soft labels was [0-9a-f]{16}, now [0-9a-f]{16}"):
        loop.train(folder, tmp_path / "resumed", SMALL, soft_labels=other)
    resumed, _ = loop.train(folder, tmp_path / "resumed", SMALL, soft_labels=path)
    assert same_weights(whole.network, resumed.network)


@pytest.mark.slow
def test_another_run_goes_on_from_a_compact_state_with_soft_labels(
    finished: TrainedRun, folder: Path, tmp_path: Path
) -> None:
    path = written(tmp_path, arrays())
    longer = replace(SMALL, epochs=7)
    compact = finished.output / loop.COMPACT
    plain, _ = loop.train(folder, tmp_path / "plain", longer, resume_from=compact)
    taught, _ = loop.train(folder, tmp_path / "taught", longer, resume_from=compact, soft_labels=path)
    assert not same_weights(plain.network, taught.network)


def test_the_distance_of_features_is_that_of_their_directions() -> None:
    teacher = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.3, 0.4], [0.0, 0.0]])
    predicted = torch.tensor([[7.0, 0.0], [0.0, 0.1], [-2.0, 0.0], [6.0, 8.0], [1.0, 1.0]], requires_grad=True)
    found = feature_distance(predicted, teacher)
    torch.testing.assert_close(found, torch.tensor([0.0, 1.0, 2.0, 0.0, 0.0]))
    (gradient,) = torch.autograd.grad(found.sum(), predicted)
    assert (gradient[1].abs() > 0).any() and (gradient[4] == 0).all()


@pytest.mark.long
@pytest.mark.slow
def test_a_network_comes_closer_to_the_features_of_its_teacher(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features tell the colours apart where the probabilities say nothing."""
    uniform = np.full((len(PATHS), 3), 1 / 3, np.float32)
    path = written(tmp_path, {**arrays(), "probability": uniform, "features": np.eye(3)[:, :2].repeat(12, 0) - 0.3})
    kept: list[Run] = []
    monkeypatch.setattr(Run, "save_compact", lambda self, path: kept.append(self))
    config = replace(SMALL, epochs=12, feature_weight=3.0, soft_label_weight=1.0)
    taught, _ = loop.train(folder, tmp_path / "taught", config, soft_labels=path)
    plain, _ = loop.train(folder, tmp_path / "plain", replace(config, feature_weight=0.0), soft_labels=path)
    assert not same_weights(taught.network, plain.network)
    distances = curves(tmp_path / "taught").Scalars("train/feature distance")
    assert distances[-1].value < 0.2 * distances[0].value
    assert kept[0].feature_head is not None and kept[0].feature_head.out_features == 2
    assert "train/feature distance" not in curves(tmp_path / "plain").Tags()["scalars"]


@pytest.mark.long
@pytest.mark.slow
def test_a_run_with_features_resumes_as_if_it_had_not_been_interrupted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, with_features())
    config = replace(SMALL, feature_weight=2.0)
    whole, _ = loop.train(folder, tmp_path / "whole", config, soft_labels=path)
    with monkeypatch.context() as patch:
        interrupt_step(patch, epoch=2)
        with pytest.raises(KeyboardInterrupt):
            loop.train(folder, tmp_path / "resumed", config, soft_labels=path)
    (tmp_path / "other").mkdir()
    with pytest.raises(CheckpointError, match=r"soft labels was [0-9a-f]{16}, now [0-9a-f]{16}"):
        loop.train(folder, tmp_path / "resumed", config, soft_labels=written(tmp_path / "other", with_features(seed=1)))
    resumed, _ = loop.train(folder, tmp_path / "resumed", config, soft_labels=path)
    assert same_weights(whole.network, resumed.network)


def test_a_weight_of_features_expects_features(folder: Path, tmp_path: Path) -> None:
    config = replace(SMALL, feature_weight=1.0)
    with pytest.raises(DataError, match=r"no soft labels; feature_weight = 1 expects a teacher's features"):
        loop.train(folder, tmp_path / "run", config)
    path = written(tmp_path, arrays())
    with pytest.raises(DataError, match=r"soft\.npz: no array 'features' in it; feature_weight = 1"):
        loop.train(folder, tmp_path / "run", config, soft_labels=path)

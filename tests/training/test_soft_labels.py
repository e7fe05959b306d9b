"""Soft labels of a teacher: which files are taken, and what a run makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.training import PLAIN, SMALL, TrainedRun, grey_images, interrupt_step, same_weights
from vitviz import CheckpointError, DataError
from vitviz.training import loop
from vitviz.training.config import Augmentation
from vitviz.training.data import read_image_folder, training_batches
from vitviz.training.soft_labels import read_soft_labels

LABELS = ("blue", "green", "red")
PATHS = tuple(f"{label}/{number}.png" for label in LABELS for number in range(12))
Arrays = dict[str, Any]


def arrays(seed: int = 0) -> Arrays:
    """Probabilities of every image of the folder of squares, by chance."""
    probability = np.random.default_rng(seed).dirichlet([1, 1, 1], len(PATHS))
    return {"labels": np.array(LABELS), "path": np.array(PATHS), "probability": probability.astype(np.float32)}


def written(folder: Path, content: Arrays) -> Path:
    path = folder / "soft.npz"
    np.savez(path, **content)
    return path


def test_probabilities_come_in_the_order_of_the_images(folder: Path, tmp_path: Path) -> None:
    content = arrays()
    order = np.random.default_rng(1).permutation(len(PATHS))
    shuffled = {**content, "path": content["path"][order], "probability": content["probability"][order]}
    # An image that is not there may have a row.
    shuffled["path"] = np.append(shuffled["path"], "blue/none.png")
    shuffled["probability"] = np.vstack([shuffled["probability"], [0, 0, 0]])
    data = read_image_folder(folder, "train", PLAIN, 2, 2)
    assert sorted(data.paths) == sorted(PATHS)
    found = read_soft_labels(written(tmp_path, shuffled), data.paths, data.labels)
    expected = torch.from_numpy(content["probability"][[PATHS.index(path) for path in data.paths]]).half()
    assert torch.equal(found.probabilities, expected)


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
    soft = torch.from_numpy(arrays()["probability"][:12]).half()
    plain = Augmentation(jitter=0, mix=0)
    arguments = (grey_images(12), PLAIN, plain, 4, (8,), 0.3, 5)
    order = torch.arange(12)
    with_soft = training_batches(*arguments, order=order, soft_labels=soft, soft_label_weight=weight)
    without = training_batches(*arguments, order=order)
    for start, ((pixels, targets), (same, labels)) in zip((0, 4, 8), zip(with_soft, without, strict=True), strict=True):
        assert torch.equal(pixels, same)
        expected = (1 - weight) * labels + weight * soft[start : start + 4].float()
        torch.testing.assert_close(targets, expected)


def test_mixed_images_have_mixed_soft_labels() -> None:
    """Mixing is linear: what is mixed of one-hot labels is mixed of the teacher's in the same proportion."""
    soft = torch.from_numpy(arrays()["probability"]).half()
    arguments = (grey_images(24), PLAIN, Augmentation(mix=1.0), 12, (8,), 0.0, 3)
    order = torch.arange(24)
    taught = list(training_batches(*arguments, order=order, soft_labels=soft[:24], soft_label_weight=1.0))
    plain = list(training_batches(*arguments, order=order))
    own = torch.eye(3)[torch.arange(24) % 3]
    for start, (_, targets), (_, labels) in zip((0, 12), taught, plain, strict=True):
        mine, teacher = own[start : start + 12], soft[start : start + 12].float()
        # The first image is of another class than the last, so that its target tells the share.
        share = float(labels[0, start % 3])
        torch.testing.assert_close(labels, share * mine + (1 - share) * mine.flip(0))
        torch.testing.assert_close(targets, share * teacher + (1 - share) * teacher.flip(0))


def test_a_run_learns_what_its_teacher_says(folder: Path, tmp_path: Path) -> None:
    """A teacher that takes each colour for the next one is believed as far as its weight goes."""
    turned = np.eye(3, dtype=np.float32)[[1, 2, 0]].repeat(12, 0)
    path = written(tmp_path, {**arrays(), "probability": turned})
    believed = replace(SMALL, soft_label_weight=1.0)
    _, accuracy = loop.train(folder, tmp_path / "believed", believed, soft_labels=path)
    assert accuracy.top1 <= 0.1
    _, accuracy = loop.train(folder, tmp_path / "not", replace(SMALL, soft_label_weight=0.1), soft_labels=path)
    assert accuracy.top1 >= 0.9


def test_a_run_without_soft_labels_does_not_depend_on_their_weight(
    finished: TrainedRun, folder: Path, tmp_path: Path
) -> None:
    model, _ = loop.train(folder, tmp_path, replace(SMALL, soft_label_weight=0.9))
    assert same_weights(model.network, finished.model.network)


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


def test_another_run_goes_on_from_a_compact_state_with_soft_labels(
    finished: TrainedRun, folder: Path, tmp_path: Path
) -> None:
    path = written(tmp_path, arrays())
    longer = replace(SMALL, epochs=7)
    compact = finished.output / loop.COMPACT
    plain, _ = loop.train(folder, tmp_path / "plain", longer, resume_from=compact)
    taught, _ = loop.train(folder, tmp_path / "taught", longer, resume_from=compact, soft_labels=path)
    assert not same_weights(plain.network, taught.network)

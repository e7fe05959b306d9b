"""Soft labels: what a teacher says of every training image, read from a file."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from vitviz.errors.kinds import DataError
from vitviz.errors.messages import describe, quote, several

ARRAYS = ("labels", "path", "probability")
FEATURES = "features"
# Half precision rounds each of many classes.
SUM_TOLERANCE = 0.01


@dataclass(frozen=True, eq=False)
class SoftLabels:
    """A teacher's class probabilities of the training images, and its features if the file has them.

    Hinton et al. 2015, "Distilling the Knowledge in a Neural Network". They are computed once for all epochs, as in
    Shen & Xing 2022, "A Fast Knowledge Distillation Framework for Visual Recognition".

    Args:
        probabilities: ``"image class"``, float16, in the order of the training images.
        features: ``"image feature"``, float16, in the same order; each row has length 1, or 0 for an image that the
            teacher has not seen. Without features, there are 0 of them.
        digest: hash by which a resumed run recognises both.
    """

    probabilities: torch.Tensor
    features: torch.Tensor
    digest: str


def feature_distance(predicted: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Cosine distance ``"image"`` of predicted features from the teacher's, both ``"image feature"``; in [0, 2].

    Romero et al. 2015, "FitNets: Hints for Thin Deep Nets". The length of the teacher's features is the weight of an
    image: mixed images count less than whole ones, images without features not at all.
    """
    return features.norm(dim=1) - (F.normalize(predicted, dim=1) * features).sum(1)


def read_soft_labels(file: Path, paths: Sequence[str], labels: Sequence[str]) -> SoftLabels:
    """Read the probabilities of training images from an ``.npz`` file.

    Args:
        file: holds ``labels`` (``"class"``, text), ``path`` (``"image"``, text, relative to the folder ``train`` with
            ``/``) and ``probability`` (``"image class"``, floats in [0, 1], each row with sum 1), and optionally
            ``features`` (``"image feature"``, finite floats, rows of zeros for images without). Rows of other paths are
            ignored.
        paths: paths of the training images, in their order.
        labels: names of the classes, in the order of their indices.

    Raises:
        DataError: the file is missing or damaged, its classes differ, an image has no row, a row holds no
            probabilities, or a feature is not finite.
    """
    try:
        # Opened here, since NumPy does not close a file that it cannot read.
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            missing = [name for name in ARRAYS if name not in archive.files]
            if missing:
                raise DataError(f"{file}: no array {missing[0]!r} in it; expected {', '.join(ARRAYS)}")
            file_labels, path, probability = (archive[name] for name in ARRAYS)
            features = archive[FEATURES] if FEATURES in archive.files else np.zeros((len(path), 0), np.float16)
    except FileNotFoundError:
        raise DataError(f"{file}: no such file; expected soft labels as an .npz file") from None
    # NumPy raises several kinds of error for damaged files, and returns an array for an .npy file.
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, TypeError, AttributeError) as error:
        raise DataError(f"{file}: damaged, or no .npz file of soft labels ({type(error).__name__})") from error
    if file_labels.ndim != 1 or file_labels.dtype.kind != "U" or tuple(file_labels) != tuple(labels):
        odd = sorted(set(file_labels.ravel().astype(str)) ^ set(labels))
        difference = f"; only one of them has {several(odd, 5)}" if odd else ", in this order"
        raise DataError(
            f"{file}: {describe(file_labels)} as labels; expected the {len(labels)} training classes{difference}"
        )
    if path.ndim != 1 or path.dtype.kind != "U":
        raise DataError(f"{file}: path is {describe(path)} of {path.dtype}; expected a list of text")
    if probability.shape != (len(path), len(labels)) or probability.dtype.kind != "f":
        raise DataError(
            f"{file}: probability is {describe(probability)} of {probability.dtype}; expected floats of shape "
            f"{(len(path), len(labels))}, images and classes"
        )
    if features.ndim != 2 or len(features) != len(path) or features.dtype.kind != "f":
        raise DataError(
            f"{file}: features is {describe(features)} of {features.dtype}; expected floats of {len(path):,} images"
        )
    rows = {str(name): row for row, name in enumerate(path)}
    lacking = [name for name in paths if name not in rows]
    if lacking:
        raise DataError(
            f"{file}: no soft label of {len(lacking):,} training images, such as {quote(lacking[0])}; expected one of "
            "each, by its path in the folder train"
        )
    order = [rows[name] for name in paths]
    probabilities, features = probability[order], features[order].astype(np.float32)
    sums = probabilities.sum(1, dtype=np.float64)
    wrong = ~(np.isfinite(sums) & (probabilities >= 0).all(1) & (np.abs(sums - 1) <= SUM_TOLERANCE))
    if wrong.any():
        first = int(wrong.argmax())
        raise DataError(
            f"{file}: the row of {quote(paths[first])} sums to {sums[first]:.4g}, its least number is "
            f"{probabilities[first].min():.4g}; expected probabilities, of 0 or more and with sum 1"
        )
    if not np.isfinite(features).all():
        first = int((~np.isfinite(features).all(1)).argmax())
        raise DataError(f"{file}: the features of {quote(paths[first])} are not all finite")
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    features = np.divide(features, lengths, out=np.zeros_like(features), where=lengths > 0)
    rounded = [np.ascontiguousarray(values, dtype=np.float16) for values in (probabilities, features)]
    digest = hashlib.sha256(b"".join(values.tobytes() for values in rounded)).hexdigest()[:16]
    return SoftLabels(torch.from_numpy(rounded[0]), torch.from_numpy(rounded[1]), digest)

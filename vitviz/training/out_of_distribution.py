"""Out-of-distribution scores, which tell pictures of a model's classes from strangers, pictures of other things."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from einops import rearrange

from vitviz.errors.kinds import DataError
from vitviz.images.opening import FILE_SUFFIXES, open_image
from vitviz.images.preprocessing import Preprocessing

SCORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    # Liu et al. 2020, "Energy-based Out-of-distribution Detection", equation 4, negated; the app uses this score.
    "energy": lambda logits: logits.logsumexp(-1),
    # Hendrycks et al. 2022, "Scaling Out-of-Distribution Detection for Real-World Settings".
    "highest logit": lambda logits: logits.amax(-1),
    # Hendrycks & Gimpel 2017, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples".
    "highest probability": lambda logits: logits.softmax(-1).amax(-1),
}
"""Scores ``"image"`` of logits ``"image class"``, by name; each should be higher for pictures of known classes."""


def area_under_curve(known: torch.Tensor, strangers: torch.Tensor) -> float:
    """The area under the ROC curve, in [0, 1]: how often a known picture scores above a stranger; a tie counts half.

    Mann & Whitney 1947, from the ranks of all scores.

    Args:
        known, strangers: scores of both kinds of pictures, each ``"image"``.
    """
    from scipy.stats import rankdata

    ranks = rankdata(torch.cat([known, strangers]).double().numpy())
    above = ranks[: len(known)].sum() - len(known) * (len(known) + 1) / 2
    return float(above / (len(known) * len(strangers)))


def read_pictures(folder: Path, preprocessing: Preprocessing, patch_height: int, patch_width: int) -> torch.Tensor:
    """Every picture below a folder, brought to the model's input size: ``"image channel height width"``, uint8.

    Raises:
        DataError: the folder holds no picture.
        ImageError: a picture cannot be opened.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in FILE_SUFFIXES and path.is_file())
    if not paths:
        raise DataError(f"{folder}: no image in it; expected {', '.join(FILE_SUFFIXES)}")
    fit = "squash" if preprocessing.fit == "native" else preprocessing.fit
    pictures = []
    for path in paths:
        picture, _ = preprocessing.fit_image(open_image(path, str(path)), patch_height, patch_width, fit)
        values = torch.from_numpy(np.array(picture))
        pictures.append(rearrange(values, "height width ... -> (...) height width"))
    return torch.stack(pictures)

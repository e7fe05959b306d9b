"""How often a model is right."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vitviz.errors import DataError
from vitviz.preprocessing import Preprocessing
from vitviz.training.data import LabelledImages
from vitviz.vit import VisionTransformer


@dataclass(frozen=True)
class Accuracy:
    """Result of an evaluation.

    Args:
        top1: part of the images whose most probable class is right, in [0, 1].
        loss: mean cross-entropy in nats.
        images: how many were evaluated.
        per_class: the part that is right among the images of each class, by label.
    """

    top1: float
    loss: float
    images: int
    per_class: dict[str, float]


@torch.inference_mode()
def evaluate(
    network: VisionTransformer,
    preprocessing: Preprocessing,
    data: LabelledImages,
    device: torch.device | None = None,
    bfloat16: bool = False,
    batch_size: int = 250,
) -> Accuracy:
    """Classify every image of a set.

    Raises:
        DataError: the model's classes are not those of the set.
    """
    if network.config.classes != len(data.labels):
        raise DataError(f"{len(data.labels)} classes in the images, {network.config.classes} in the model")
    device = device or torch.device("cpu")
    logits = []
    with torch.autocast(device.type, torch.bfloat16) if bfloat16 else nullcontext():
        for images in data.images.split(batch_size):
            pixels = preprocessing.standardise(images.float() / 255)
            logits.append(network(pixels.to(device)).float().cpu())
    scores = torch.cat(logits)
    right = (scores.argmax(-1) == data.targets).float()
    per_class = {label: float(right[data.targets == index].mean()) for index, label in enumerate(data.labels)}
    return Accuracy(float(right.mean()), float(F.cross_entropy(scores, data.targets)), len(data), per_class)

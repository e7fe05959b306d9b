"""How often a model is right, and how far its probabilities can be believed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vitviz.errors.kinds import DataError
from vitviz.errors.messages import quote, several
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.vit import VisionTransformer
from vitviz.training.calibrate import calibration_error
from vitviz.training.data import LabelledImages

# Standard deviations to either side of the mean between which a normal variable is with a probability of 95 %.
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Accuracy:
    """Result of an evaluation.

    Args:
        top1: part of the images whose most probable class is right, in [0, 1].
        loss: mean cross-entropy in nats.
        images: how many were evaluated.
        per_class: the part that is right among the images of each class that has some, by label.
        counts: the images of each of these classes.
        calibration_error: expected calibration error, in [0, 1].
        top5: part of the images whose class is among the five most probable ones, in [0, 1].
    """

    top1: float
    loss: float
    images: int
    per_class: dict[str, float]
    counts: dict[str, int]
    calibration_error: float
    top5: float

    def of(self, labels: Sequence[str]) -> tuple[float, int]:
        """The part that is right among the images of some classes taken together, and how many they are.

        Raises:
            DataError: a class is none of them.
        """
        for label in labels:
            if label not in self.counts:
                raise DataError(f"class {quote(label)}: expected one of {several(tuple(self.counts), 10)}")
        count = sum(self.counts[label] for label in labels)
        return sum(self.per_class[label] * self.counts[label] for label in labels) / count, count

    def interval(self, *labels: str) -> tuple[float, float]:
        """Between which the accuracy on all images of some classes lies, or of all classes, with a confidence of 95 %.

        Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
        """
        share, count = self.of(labels or tuple(self.counts))
        squared = NORMAL_95**2 / count
        middle = (share + squared / 2) / (1 + squared)
        half = NORMAL_95 / (1 + squared) * math.sqrt(share * (1 - share) / count + squared / (4 * count))
        return middle - half, middle + half


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
    return accuracy_of(classify(network, preprocessing, data, device, bfloat16, batch_size), data)


def classify(
    network: VisionTransformer,
    preprocessing: Preprocessing,
    data: LabelledImages,
    device: torch.device | None = None,
    bfloat16: bool = False,
    batch_size: int = 250,
) -> torch.Tensor:
    """The logits of every image of a set: ``"image class"``.

    Raises:
        DataError: the model's classes are not those of the set.
    """
    if network.config.classes != len(data.labels):
        raise DataError(f"{len(data.labels)} classes in the images, {network.config.classes} in the model")
    return logits_of(network, preprocessing, data.images, device, bfloat16, batch_size)


@torch.inference_mode()
def logits_of(
    network: VisionTransformer,
    preprocessing: Preprocessing,
    images: torch.Tensor,
    device: torch.device | None = None,
    bfloat16: bool = False,
    batch_size: int = 250,
) -> torch.Tensor:
    """The logits ``"image class"`` of images ``"image channel height width"``, uint8 of the model's input size."""
    device = device or torch.device("cpu")
    logits = []
    with torch.autocast(device.type, torch.bfloat16) if bfloat16 else nullcontext():
        for some in images.split(batch_size):
            pixels = preprocessing.standardise(some.float() / 255)
            logits.append(network(pixels.to(device)).float().cpu())
    return torch.cat(logits)


def accuracy_of(logits: torch.Tensor, data: LabelledImages) -> Accuracy:
    """How often logits are right: ``"image class"``, of the images of a set in their order."""
    right = (logits.argmax(-1) == data.targets).float()
    of_class = {data.labels[index]: data.targets == index for index in data.targets.unique().tolist()}
    return Accuracy(
        float(right.mean()),
        float(F.cross_entropy(logits, data.targets)),
        len(data),
        {label: float(right[those].mean()) for label, those in of_class.items()},
        {label: int(those.sum()) for label, those in of_class.items()},
        calibration_error(logits, data.targets),
        float((logits.topk(min(5, logits.shape[-1])).indices == data.targets[:, None]).any(-1).float().mean()),
    )

"""Accuracy, loss and calibration error of a model on labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from vitviz.errors.kinds import DataError
from vitviz.errors.messages import quote, several
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.network import Network
from vitviz.training.calibrate import calibration_error
from vitviz.training.data import LabelledImages


@dataclass(frozen=True)
class Accuracy:
    """Result of an evaluation.

    Args:
        top1: fraction of the images whose most probable class is right, in [0, 1].
        loss: mean cross-entropy in nats.
        images: number of evaluated images.
        per_class: accuracy on each class that has images, in [0, 1], by label.
        counts: number of images of each of these classes, by label.
        calibration_error: expected calibration error, in [0, 1].
        top5: fraction of the images whose class is among the five most probable ones, in [0, 1].
    """

    top1: float
    loss: float
    images: int
    per_class: dict[str, float]
    counts: dict[str, int]
    calibration_error: float
    top5: float

    def of(self, labels: Sequence[str]) -> tuple[float, int]:
        """The accuracy on all images of the given classes together, in [0, 1], and the number of these images.

        Raises:
            DataError: a class has no evaluated images.
        """
        for label in labels:
            if label not in self.counts:
                raise DataError(f"class {quote(label)}: expected one of {several(tuple(self.counts), 10)}")
        count = sum(self.counts[label] for label in labels)
        return sum(self.per_class[label] * self.counts[label] for label in labels) / count, count

    def interval(self, *labels: str) -> tuple[float, float]:
        """The 95 % confidence interval of the accuracy on the given classes, or on all: lower and upper bound.

        Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
        """
        from scipy.stats import binomtest

        accuracy, count = self.of(labels or tuple(self.counts))
        low, high = binomtest(round(accuracy * count), count).proportion_ci(method="wilson")
        return float(low), float(high)


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))


def evaluate(
    network: Network,
    preprocessing: Preprocessing,
    data: LabelledImages,
    device: torch.device | None = None,
    bfloat16: bool = False,
    batch_size: int = 250,
) -> Accuracy:
    """Classify every image of a set and measure the accuracy.

    Raises:
        DataError: the model's classes are not those of the set.
    """
    if network.config.classes != len(data.labels):
        raise DataError(f"{len(data.labels)} classes in the images, {network.config.classes} in the model")
    return accuracy_of(logits_of(network, preprocessing, data.images, device, bfloat16, batch_size), data)


@torch.inference_mode()
def logits_of(
    network: Network,
    preprocessing: Preprocessing,
    images: torch.Tensor,
    device: torch.device | None = None,
    bfloat16: bool = False,
    batch_size: int = 250,
) -> torch.Tensor:
    """The logits ``"image class"`` of images of the model's input size, ``"image channel height width"``, uint8."""
    device = device or torch.device("cpu")
    with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
        batches = (preprocessing.standardise(batch.float() / 255).to(device) for batch in images.split(batch_size))
        return torch.cat([network(pixels).float().cpu() for pixels in batches])


def accuracy_of(logits: torch.Tensor, data: LabelledImages) -> Accuracy:
    """The accuracy of logits, ``"image class"``, of the images of a set in their order."""
    correct = (logits.argmax(-1) == data.targets).float()
    masks = {data.labels[index]: data.targets == index for index in data.targets.unique().tolist()}
    return Accuracy(
        float(correct.mean()),
        float(F.cross_entropy(logits, data.targets)),
        len(data),
        {label: float(correct[mask].mean()) for label, mask in masks.items()},
        {label: int(mask.sum()) for label, mask in masks.items()},
        calibration_error(logits, data.targets),
        float((logits.topk(min(5, logits.shape[-1])).indices == data.targets[:, None]).any(-1).float().mean()),
    )

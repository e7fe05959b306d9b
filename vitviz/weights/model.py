"""A network together with what belongs to it: its name, preprocessing, labels and card."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from vitviz.errors.arguments import named_arguments
from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import quote
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.devices import usable_device
from vitviz.models.network import Network
from vitviz.models.vit import VisionTransformer


@dataclass(frozen=True)
class Origin:
    """Where a checkpoint comes from.

    Args:
        folder: that its file stands in.
        repository, commit: of the Hugging Face hub, where it was downloaded.
    """

    folder: Path
    repository: str | None = None
    commit: str | None = None


@dataclass(frozen=True)
class Snapshots:
    """States of a model during its training.

    Args:
        files: the checkpoint of each, by the number of training steps before it, in ascending order.
    """

    files: Mapping[int, Path]

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(self.files)


@dataclass(frozen=True, eq=False)
class Model:
    """A checkpoint, ready to use.

    Args:
        name: what the user calls it.
        network: the Vision Transformer, in evaluation mode: vitviz's own, of which those that :func:`vitviz.load` gives
            are frozen, or the user's module, captured.
        preprocessing: how its images are prepared.
        labels: one per class; empty for a model without a classifier.
        card: facts about it, such as its accuracy, by name.
        origin: where its checkpoint comes from; None for a network that was not opened from one.
        ood_threshold: a picture with a lower :attr:`vitviz.Analysis.energy_score` is out of the distribution of the
            training images; None where that was not measured.
        snapshots: of its training; None for a model that was opened without them.
        step: which of its snapshots it is.
        assumptions: what nothing in its checkpoint says and was taken from published ones: ``"heads 12"``.

    Raises:
        ConfigError: labels, channels or image size of the parts contradict each other, or the threshold is no
            number.
    """

    name: str
    network: Network
    preprocessing: Preprocessing
    labels: tuple[str, ...]
    card: dict[str, str] = field(default_factory=dict)
    origin: Origin | None = None
    ood_threshold: float | None = None
    snapshots: Snapshots | None = None
    step: int | None = None
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        config, preprocessing = self.network.config, self.preprocessing
        if len(self.labels) != config.classes:
            raise ConfigError(f"{self.name}: {len(self.labels)} labels for {config.classes} classes")
        if len(preprocessing.mean) != config.channels:
            raise ConfigError(f"{self.name}: {len(preprocessing.mean)} channel means for {config.channels} channels")
        config.layout(*preprocessing.whole_patches(config.patch_height, config.patch_width))
        least = self.ood_threshold
        if least is not None and not (type(least) in (int, float) and math.isfinite(least) and self.labels):
            raise ConfigError(f"{self.name}: ood_threshold = {quote(least)}: expected a number, of a classifier")

    def __repr__(self) -> str:
        config = self.network.config
        classes = f"{len(self.labels):,} classes" if self.labels else "no classifier"
        size = f"{config.depth} layers × {config.heads} heads, width {config.width}"
        input_size = f"{config.image_width}×{config.image_height} pixels in patches of {config.patch_width}"
        across = "" if config.patch_width == config.patch_height else f"×{config.patch_height}"
        return f"Model({self.name!r}: {size}, {input_size}{across}, {classes}, on {self.network.device})"

    @named_arguments(ConfigError)
    def to(self, device: str | torch.device) -> Model:
        """Move the network to a device, such as ``"cuda"``; returns this model.

        Raises:
            ConfigError: there is no such device on this machine.
        """
        self.network.to(usable_device(device))
        return self

    @property
    def engine(self) -> str:
        """Which network computes, ``"own"`` for vitviz's and ``"module"`` for the user's module, captured."""
        return "own" if isinstance(self.network, VisionTransformer) else "module"

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    @property
    def nbytes(self) -> int:
        """Bytes that its weights take in memory."""
        return sum(parameter.nbytes for parameter in self.network.parameters())

"""Settings and presets of training runs. Imports nothing that only a run needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from vitviz.errors.arguments import word
from vitviz.errors.kinds import ConfigError
from vitviz.images.colours import COLOR_PROFILES
from vitviz.models.config import ViTConfig
from vitviz.models.pooling import POOLINGS


def setting(default: Any, help: str, low: float = 0, high: float = math.inf) -> Any:
    """A field of the settings with its range, both ends included; the command has an option of its name."""
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of a run, which determine its result together with the images; each field's metadata describe it.

    Mixup: Zhang et al. 2018. CutMix: Yun et al. 2019.

    Raises:
        ConfigError: a value is out of range.
    """

    image_size: int = setting(32, "side of the model's input in pixels", 1)
    patch_size: int = setting(4, "side of a patch in pixels", 1)
    width: int = setting(192, "features of a token", 1)
    depth: int = setting(6, "encoder layers", 1)
    heads: int = setting(6, "attention heads of a layer", 1)
    mlp_ratio: float = setting(4.0, "hidden features of the MLP, as a multiple of the width")
    register_tokens: int = setting(0, "register tokens beside the CLS token")
    pooling: str = setting("cls", "what the classifier reads: cls, or the mean of the patches")
    color_profile: Literal["apply", "ignore"] = setting(
        "apply", "apply converts colours from a picture's profile to sRGB, ignore keeps them"
    )
    epochs: int = setting(32, "number of epochs", 1)
    batch_size: int = setting(256, "images of a step", 1)
    learning_rate: float = setting(1e-3, "highest learning rate (AdamW)")
    weight_decay: float = setting(0.05, "weight decay")
    warmup: float = setting(0.05, "fraction of the steps, the first, in which the learning rate rises", high=1)
    label_smoothing: float = setting(0.1, "probability that is spread evenly over all classes", high=1)
    smallest_crop: float = setting(0.5, "smallest area of a random crop, as a fraction of the image", 1e-3, 1)
    flip: bool = setting(True, "mirror half of the images")
    jitter: float = setting(0.3, "largest change of brightness, contrast and saturation, as a fraction", high=1)
    mix: float = setting(0.5, "fraction of the batches that mixup or CutMix mixes", high=1)
    smallest_scale: float = setting(1.0, "smallest side of a batch's images, as a fraction of the image size", 1e-3, 1)
    low_resolution: float = setting(0.6, "fraction of the epochs, the first, with images of that side alone", high=1)
    average_decay: float = setting(0.999, "decay of the averaged weights, which are evaluated and saved", high=1)
    evaluate_every: int = setting(2, "epochs between two evaluations on the test images", 1)
    seed: int = setting(0, "seed of the initial weights, the order of the images and the augmentation")

    def __post_init__(self) -> None:
        for option in fields(self):
            value, low, high = getattr(self, option.name), option.metadata["low"], option.metadata["high"]
            if not isinstance(value, str) and not low <= value <= high:
                ends = f"at least {low:g}" if high == math.inf else f"a number from {low:g} to {high:g}"
                raise ConfigError(f"{option.name} = {value}: expected {ends}")
        word("color_profile", self.color_profile, COLOR_PROFILES, ConfigError)
        word("pooling", self.pooling, tuple(POOLINGS), ConfigError)
        if self.width % self.heads:
            raise ConfigError(f"width = {self.width}: expected a multiple of heads = {self.heads}")
        # The network's own checks run here, before any image is read.
        self.model_config(classes=1)

    def model_config(self, classes: int) -> ViTConfig:
        """The configuration of this run's network with the given number of classes."""
        return ViTConfig(
            image_height=self.image_size,
            image_width=self.image_size,
            patch_height=self.patch_size,
            patch_width=self.patch_size,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            head_width=self.width // self.heads,
            mlp_width=round(self.width * self.mlp_ratio),
            classes=classes,
            register_tokens=self.register_tokens,
            pooling=self.pooling,
        )

    def sides(self, epoch: int) -> tuple[int, ...]:
        """The sides in pixels, in whole patches, from which each batch of an epoch draws one.

        A network trained on several grids works on each of them: Beyer et al. 2023, "FlexiViT: One Model for All Patch
        Sizes". There the patch size changes; here the image size does.
        """
        first = self.smallest_scale
        scales = (first,) if epoch < self.low_resolution * self.epochs else (first, (first + 1) / 2, 1.0)
        grids = {max(1, round(self.image_size / self.patch_size * scale)) for scale in scales}
        return tuple(sorted(grid * self.patch_size for grid in grids))


PRESETS: dict[str, TrainingConfig] = {
    # Small colour pictures, such as CIFAR-10's; a network for several grids.
    "cifar10": TrainingConfig(
        image_size=64, register_tokens=4, smallest_scale=0.375, low_resolution=0.75, evaluate_every=4
    ),
    # Photographs whose subject is large or small.
    "photos": TrainingConfig(
        image_size=112,
        patch_size=8,
        depth=8,
        register_tokens=4,
        smallest_crop=0.2,
        smallest_scale=0.43,
        low_resolution=0.75,
        evaluate_every=4,
    ),
    # Digits and clothes, such as MNIST and Fashion-MNIST. A mirrored digit is not a digit, and a small crop may cut off
    # the stroke that distinguishes two digits.
    "grey": TrainingConfig(
        image_size=28,
        width=96,
        depth=4,
        heads=4,
        mlp_ratio=2.0,
        epochs=8,
        batch_size=128,
        smallest_crop=0.7,
        flip=False,
        jitter=0.1,
        mix=0.0,
    ),
}
"""Recommended settings, by name."""

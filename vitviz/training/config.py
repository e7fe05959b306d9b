"""Configuration and presets of training runs. Imports nothing that only a run needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from vitviz.errors.arguments import word
from vitviz.errors.kinds import ConfigError
from vitviz.images.colours import COLOR_PROFILES
from vitviz.models.config import ViTConfig


def setting(default: Any, help: str) -> Any:
    """A field of a configuration; the command has an option of its name with this help."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Augmentation:
    """Random changes of the training images, drawn anew for every image and epoch.

    Mixup: Zhang et al. 2018. CutMix: Yun et al. 2019. Grey and solarized images: Touvron et al. 2022, "DeiT III". The
    metadata of each field hold its description.
    """

    smallest_crop: float = setting(0.5, "smallest area of a random crop, as a fraction of the image")
    aspect: float = setting(4 / 3, "largest aspect ratio of a random crop, in either direction")
    flip: bool = setting(True, "mirror half of the images")
    plain_ground: float = setting(0.0, "fraction of the images that are shrunk onto a plain background")
    jitter: float = setting(0.3, "largest change of brightness, contrast and saturation, as a fraction")
    greyscale: float = setting(0.0, "fraction of the images that lose their colours")
    solarize: float = setting(0.0, "fraction of the images whose values above a half are inverted")
    mix: float = setting(0.5, "fraction of the batches that mixup or CutMix mixes")
    detail: float = setting(
        1.0, "smallest side that an image is reduced to before it is enlarged, as a fraction of the side that is seen"
    )
    colour_detail: float = setting(1.0, "the same for colours alone, as in compressed files")
    sharpest: float = setting(0.0, "largest factor of the finer detail, drawn from 0; above 1 sharpens")

    def __post_init__(self) -> None:
        if not 0 < self.smallest_crop <= 1:
            raise ConfigError(f"smallest_crop = {self.smallest_crop}: expected a number in (0, 1]")
        if not 1 <= self.aspect < float("inf"):
            raise ConfigError(f"aspect = {self.aspect}: expected a number of 1 or more")
        if not 0 <= self.sharpest < float("inf"):
            raise ConfigError(f"sharpest = {self.sharpest}: expected a number of 0 or more")
        for name in ("plain_ground", "jitter", "greyscale", "solarize", "mix"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected a number in [0, 1]")
        if self.greyscale + self.solarize > 1:
            raise ConfigError(f"greyscale = {self.greyscale}, solarize = {self.solarize}: expected a sum of at most 1")
        for name in ("detail", "colour_detail"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected a number in (0, 1]")


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of a run, which determine its result together with the images; each field's metadata describe it.

    Raises:
        ConfigError: a value is out of range.
    """

    image_size: int = setting(32, "side of the model's input in pixels")
    patch_size: int = setting(4, "side of a patch in pixels")
    width: int = setting(192, "features of a token")
    depth: int = setting(6, "encoder layers")
    heads: int = setting(6, "attention heads of a layer")
    mlp_ratio: float = setting(4.0, "hidden features of the MLP, as a multiple of the width")
    register_tokens: int = setting(0, "register tokens beside the CLS token")
    colour_frequencies: int = setting(0, "lowest frequencies of colour in a patch that the model sees; 0 for all")
    picture_detail: int = setting(
        0, "side in pixels to which every picture is reduced before it is enlarged; 0 reduces none"
    )
    color_profile: Literal["apply", "ignore"] = setting(
        "apply", "apply converts colours from a picture's profile to sRGB, ignore keeps them"
    )
    epochs: int = setting(32, "number of epochs")
    images_per_epoch: int = setting(0, "images of an epoch, 0 for all; the next epoch continues where it ends")
    class_balance: float = setting(0.0, "0 draws every image equally often, 1 every class; values between interpolate")
    batch_size: int = setting(256, "images of a step")
    muon_rate: float = setting(3e-3, "highest learning rate of the encoder's matrices (Muon)")
    adam_rate: float = setting(2e-3, "highest learning rate of all other parameters (Adam)")
    weight_decay: float = setting(0.05, "weight decay of both optimisers")
    warmup: float = setting(0.05, "fraction of the steps, the first, in which the learning rates rise")
    cooldown: float = setting(1.0, "fraction of the steps, the last, in which the learning rates fall")
    label_smoothing: float = setting(0.1, "probability that is spread evenly over all classes")
    soft_label_weight: float = setting(0.5, "weight of the teacher's probabilities in the targets")
    feature_weight: float = setting(0.0, "weight of the cosine distance from the teacher's features in the loss")
    low_resolution: float = setting(0.625, "fraction of the epochs, the first, with smaller images")
    low_scale: float = setting(0.75, "side of these smaller images, as a fraction of the image size")
    smallest_scale: float = setting(1.0, "smallest side of the later batches, as a fraction of the image size")
    largest_scale: float = setting(1.0, "largest side of the later batches, as a multiple of the image size")
    seen_patches: int = setting(0, "patches of an image that a step sees, drawn anew each time; 0 for all")
    average_decay: float = setting(0.999, "decay of the averaged weights, which are evaluated and saved")
    evaluate_every: int = setting(2, "epochs between two evaluations on the test images")
    seed: int = setting(0, "seed of the initial weights, the order of the images and the augmentation")
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "evaluate_every", "heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected at least 1")
        word("color_profile", self.color_profile, COLOR_PROFILES, ConfigError)
        for name in ("picture_detail", "seen_patches"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected 0 or more")
        if self.images_per_epoch and self.images_per_epoch < self.batch_size:
            raise ConfigError(
                f"images_per_epoch = {self.images_per_epoch}: expected 0 or at least batch_size = {self.batch_size}"
            )
        fractions = "warmup", "cooldown", "class_balance", "label_smoothing", "soft_label_weight", "low_resolution"
        for name in (*fractions, "average_decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected a number in [0, 1]")
        for name in ("low_scale", "smallest_scale"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected a number in (0, 1]")
        if not 1 <= self.largest_scale < float("inf"):
            raise ConfigError(f"largest_scale = {self.largest_scale}: expected a number of 1 or more")
        for name in ("muon_rate", "adam_rate", "weight_decay", "mlp_ratio", "feature_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} = {getattr(self, name)}: expected a number of 0 or more")
        if self.width % self.heads:
            raise ConfigError(f"width = {self.width}: expected a multiple of heads = {self.heads}")
        if not 0 <= self.colour_frequencies <= self.patch_size:
            raise ConfigError(
                f"colour_frequencies = {self.colour_frequencies}: expected 0 to patch_size = {self.patch_size}"
            )
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
        )

    def sides(self, epoch: int) -> tuple[int, ...]:
        """The sides in pixels from which each batch of an epoch draws one.

        A network trained on several grids works on each of them: Beyer et al. 2023, "FlexiViT: One Model for All Patch
        Sizes". There the patch size changes; here the image size does.
        """
        if epoch < self.low_resolution * self.epochs:
            return (self._side(self.low_scale),)
        scales = self.smallest_scale, (self.smallest_scale + 1) / 2, 1.0, self.largest_scale
        return tuple(sorted({self._side(scale) for scale in scales}))

    def _side(self, scale: float) -> int:
        """The scaled side of the image in pixels, rounded to whole patches."""
        return max(1, round(self.image_size / self.patch_size * scale)) * self.patch_size


PRESETS: dict[str, TrainingConfig] = {
    # A network for several grids.
    "cifar10": TrainingConfig(
        image_size=64,
        register_tokens=4,
        low_resolution=0.75,
        low_scale=0.375,
        smallest_scale=0.5,
        evaluate_every=4,
    ),
    # Photographs whose subject is large or small. An epoch is half of some 70,000 images, so that an interrupt loses
    # little. The network must not see the sharpness of colours, which would reveal the source of a photograph.
    "photos": TrainingConfig(
        image_size=112,
        patch_size=8,
        depth=8,
        register_tokens=4,
        colour_frequencies=2,
        epochs=40,
        images_per_epoch=32_768,
        class_balance=0.5,
        warmup=0.06,
        cooldown=0.3,
        low_resolution=0.9,
        low_scale=0.43,
        smallest_scale=0.43,
        evaluate_every=4,
        augmentation=Augmentation(
            smallest_crop=0.2, aspect=1.6, plain_ground=0.25, detail=0.6, colour_detail=0.2, sharpest=2.0
        ),
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
        low_resolution=0.0,
        augmentation=Augmentation(smallest_crop=0.7, flip=False, jitter=0.1, mix=0.0),
    ),
}
"""Recommended configurations, by name."""

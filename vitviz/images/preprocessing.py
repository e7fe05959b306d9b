"""Turn pictures into a model's input, and record where the input lies on the picture."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from einops import rearrange
from PIL import Image

from vitviz.errors.arguments import integer_or_none, named_arguments, named_fields, number_or_none, word
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.errors.messages import choices, describe
from vitviz.images.colours import COLOR_PROFILES, ColorProfile
from vitviz.images.file_kinds import MAX_PIXELS
from vitviz.images.geometry import Geometry, Sized, size_at
from vitviz.images.image_facts import ImageFacts
from vitviz.images.resizing import BACKENDS, INTERPOLATIONS, reduce_detail, resize_and_crop, to_image

Fit = Literal["crop", "squash", "native"]
FITS: tuple[Fit, ...] = get_args(Fit)
Rounding = Literal["torchvision", "transformers"]
ROUNDINGS: tuple[Rounding, ...] = get_args(Rounding)


CHANNELS = (1, 3)


def why_not_channels(count: int) -> str | None:
    """Why pictures of this number of channels cannot be prepared; None if they can."""
    if count in CHANNELS:
        return None
    return (
        f"pictures of {count} channels; so far, vitviz prepares pictures of 3, red, green and blue, or of 1, grey, only"
    )


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """An image ready for a model.

    Args:
        image: the user's image, upright RGB.
        pixels: the model's input, ``"1 channel height width"``, standardised.
        geometry: where the pixels lie on the image, or on that of its file if it was reduced while it was decoded.
        source: the file of the image, or its index in a batch; None if neither is known.

    Raises:
        ConfigError: the geometry is not that of the image and the pixels.
    """

    image: Image.Image
    pixels: torch.Tensor
    geometry: Geometry
    source: Path | int | None = None

    def __repr__(self) -> str:
        source = "" if self.source is None else f"{self.source}: "
        return (
            f"PreparedImage({source}{self.image.width}×{self.image.height} pixels as an input of "
            f"{self.geometry.input_width}×{self.geometry.input_height})"
        )

    def __post_init__(self) -> None:
        geometry = self.geometry
        if (geometry.image_width, geometry.image_height) not in (self.image.size, ImageFacts.of(self.image).size):
            raise ConfigError(
                f"image of {self.image.width}×{self.image.height} pixels: its geometry is for "
                f"{geometry.image_width}×{geometry.image_height}"
            )
        if self.pixels.shape[2:] != (geometry.input_height, geometry.input_width):
            raise ConfigError(
                f"pixels of shape {tuple(self.pixels.shape)}: the geometry expects '1 channel {geometry.input_height} "
                f"{geometry.input_width}'"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the picture and of the model's input."""
        return self.pixels.nbytes + 3 * self.image.width * self.image.height

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What :func:`vitviz.open_image` assumed of the image, a sentence each."""
        return ImageFacts.of(self.image).assumptions

    def resized(self, longest_side: int) -> PreparedImage:
        """The same input, on the user's image at another size."""
        image, geometry = resize_longest(self.image, self.geometry, longest_side)
        return PreparedImage(image, self.pixels, geometry, self.source)


@named_fields(ConfigError)
@dataclass(frozen=True)
class Preprocessing:
    """How images become a model's input. Belongs to the checkpoint, as its weights do.

    The input need not be a multiple of the patch: as the packages' patch convolutions do, a network reads the whole
    patches from the top left corner, and :meth:`prepare` leaves out the rest on the right and below.

    Args:
        height, width: trained size in pixels; at most 64 million together.
        mean, std: of every channel, for values in [0, 1]; their length is the number of channels, 1 or 3.
        fit: how a picture of another shape is fitted to this one: ``"crop"`` resizes its shorter side and cuts out
            the centre, ``"squash"`` stretches the whole, ``"native"`` keeps its aspect ratio at about the same area,
            each side a multiple of the patch.
        crop_fraction: for ``"crop"``, the fraction of the shorter side that remains, in (0, 1].
        interpolation: nearest, bilinear, bicubic, lanczos, box or hamming; all but nearest antialiased.
        squash_fraction: for ``"squash"``, the fraction of each side that remains, in (0, 1].
        rounding: which package's rounding. ``"torchvision"``, like timm and open_clip, rounds where a crop begins,
            resizes for an oblong crop until both sides are covered, and with ``"native"`` has the sides nearest to the
            trained area. ``"transformers"`` rounds the beginning of a crop down, resizes for an oblong crop as for a
            square of its shorter side where that covers it, and with ``"native"`` has the most patches that fit the
            trained number, as in NaFlex.
        backend: of the resizing, which decides how levels are rounded: ``"pillow"`` as in timm and open_clip,
            ``"torchvision"`` as transformers does with tensors of whole levels, or ``"torchvision float"`` as it does
            with tensors that are not rounded. torch has no box and no hamming, and older versions have no lanczos.
        detail: the limit of an input's sharpness, as the side of a square. A larger input is reduced to as many pixels
            and enlarged again, so that sharpness does not reveal where a picture comes from. None for no limit.
        color_profile: how the training pictures were opened, as :func:`vitviz.open_image` takes it.

    Raises:
        ConfigError: a value is out of range.

    >>> model.preprocessing.fit, model.preprocessing.at(224, 8, 8).height
    ('squash', 224)
    """

    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fit: Fit = "crop"
    crop_fraction: float = 1.0
    interpolation: str = "bicubic"
    squash_fraction: float = 1.0
    rounding: Rounding = "torchvision"
    backend: str = "pillow"
    detail: int | None = None
    color_profile: ColorProfile = "apply"

    def __post_init__(self) -> None:
        sides = (self.height, self.width)
        if not all(isinstance(side, int) and side >= 1 for side in sides) or math.prod(sides) > MAX_PIXELS:
            raise ConfigError(
                f"input of {self.height!r}×{self.width!r} pixels: expected whole numbers of at least 1, and at most "
                f"{MAX_PIXELS:,} pixels together"
            )
        for name in ("mean", "std"):
            # Lists, arrays and tensors are the same.
            values = tuple(np.ravel(getattr(self, name)).tolist())
            object.__setattr__(self, name, values)
            if not all(map(_is_number, values)):
                raise ConfigError(f"{name} = {describe(values)}: expected a tuple of 1 or 3 finite numbers")
            if reason := why_not_channels(len(values)):
                raise ConfigError(f"{name} = {values!r}: {reason}")
        if len(self.mean) != len(self.std):
            raise ConfigError(f"{len(self.mean)} means and {len(self.std)} deviations: expected as many of each")
        if min(self.std) <= 0:
            raise ConfigError(f"std = {self.std}: every deviation must be above 0")
        words = {"fit": FITS, "rounding": ROUNDINGS, "backend": BACKENDS, "interpolation": INTERPOLATIONS}
        for name, legal in {**words, "color_profile": COLOR_PROFILES}.items():
            word(name, getattr(self, name), legal, ConfigError)
        for name, fraction in (("crop_fraction", self.crop_fraction), ("squash_fraction", self.squash_fraction)):
            if not _is_number(fraction) or not 0 < fraction <= 1:
                raise ConfigError(f"{name} = {describe(fraction)}: expected a number in (0, 1]")
        if self.interpolation not in BACKENDS[self.backend]:
            raise ConfigError(
                f"interpolation {self.interpolation!r} of the backend {self.backend!r}: expected "
                f"{choices(BACKENDS[self.backend])}"
            )
        if self.detail is not None and (type(self.detail) is not int or self.detail < 1):
            raise ConfigError(f"detail = {describe(self.detail)}: expected None or a whole number of at least 1")

    @classmethod
    @named_arguments(ConfigError)
    def from_dict(cls, values: dict[str, Any]) -> Preprocessing:
        """The inverse of :meth:`to_dict`.

        Raises:
            ConfigError: a field is missing, unknown or out of range.
        """
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint's metadata."""
        return asdict(self)

    @property
    def description(self) -> str:
        """How pictures become inputs, in a few words."""
        return f"{self.fit}, {self.interpolation}"

    def at(self, resolution: int, patch_height: int, patch_width: int) -> Preprocessing:
        """The same with another input size.

        Args:
            resolution: pixels of the shorter side, a multiple of the patch or the present one. The other side is in
                proportion to the trained one, rounded to the nearest multiple of the patch; ``"native"`` keeps the
                area of these sides.
            patch_height, patch_width: of the model, in pixels.

        Raises:
            ConfigError: the resolution is no positive whole number or no multiple of the patch, or the input is larger
                than 64 million pixels.
        """
        (short, side, patch), (long, other_side, other_patch) = self._sides(patch_height, patch_width)
        shorter = integer_or_none(resolution)
        if shorter == side:
            return self
        if shorter is None or shorter < 1 or shorter % patch:
            value = number_or_none(resolution)
            below = math.floor((side if value is None or value < 1 else value) / patch) * patch
            raise ConfigError(
                f"resolution = {describe(resolution)}: expected "
                f"{'one number, the shorter side in pixels: ' * (value is None)}a multiple of the patch's {patch} "
                f"pixels: {choices((max(below, patch), max(below, patch) + patch))}"
            )
        proportional = round(shorter * other_side / side / other_patch) * other_patch
        # With a square input and an oblong patch, rounding must not make the other side the shorter one.
        longer = max(proportional, math.ceil(shorter / other_patch) * other_patch)
        return replace(self, **cast(Any, {short: shorter, long: longer}))

    def smaller(self, patch_height: int, patch_width: int) -> range:
        """The resolutions below the present one that :meth:`at` accepts, the largest first."""
        _, side, patch = self._sides(patch_height, patch_width)[0]
        return range((side - 1) // patch * patch, 0, -patch)

    def prepare(self, image: Image.Image, patch_height: int, patch_width: int, fit: Fit | None = None) -> PreparedImage:
        """Resize, crop and normalise an RGB image as the checkpoint was trained.

        Args:
            image: as :func:`open_image` gives it; not changed.
            patch_height, patch_width: of the model, in pixels.
            fit: instead of the checkpoint's own.

        Raises:
            ConfigError: the fit is unknown.
            ImageError: the image is not RGB.
        """
        pixels, geometry = self._fit(image, patch_height, patch_width, fit)
        values = pixels if pixels.is_floating_point() else pixels.float() / 255
        return PreparedImage(image, self.standardise(values[None]), geometry.resized(*ImageFacts.of(image).size))

    def standardise(self, pixels: torch.Tensor) -> torch.Tensor:
        """Standardise inputs ``"... channel height width"`` in [0, 1] as in training."""
        if self.detail is not None:
            pixels = reduce_detail(pixels, self.detail)
        mean, std = (pixels.new_tensor(values) for values in (self.mean, self.std))
        return (pixels - rearrange(mean, "channel -> channel 1 1")) / rearrange(std, "channel -> channel 1 1")

    def fit_image(
        self, image: Image.Image, patch_height: int, patch_width: int, fit: Fit | None = None
    ) -> tuple[Image.Image, Geometry]:
        """An image resized and cropped to the model's input, not standardised, and its geometry on the image.

        Raises:
            ConfigError: the fit is unknown.
            ImageError: the image is not RGB.
        """
        pixels, geometry = self._fit(image, patch_height, patch_width, fit)
        return to_image(pixels), geometry

    def input_size(self, image: Sized, patch_height: int, patch_width: int, fit: Fit | None = None) -> tuple[int, int]:
        """Height and width in pixels of the model's input for an image.

        Raises:
            ConfigError: the fit is unknown.
        """
        fit = self.fit if fit is None else fit
        word("fit", fit, FITS, ConfigError)
        if fit == "native":
            return self._native_size(image, patch_height, patch_width)
        return self.whole_patches(patch_height, patch_width)

    def whole_patches(self, patch_height: int, patch_width: int) -> tuple[int, int]:
        """Height and width in pixels of the whole patches within the trained size.

        Raises:
            ConfigError: there is not one whole patch.
        """
        height, width = self.height // patch_height * patch_height, self.width // patch_width * patch_width
        if not height or not width:
            raise ConfigError(
                f"input of {self.height}×{self.width} pixels: expected at least one patch, {patch_height}×{patch_width}"
            )
        return height, width

    def _fit(
        self, image: Image.Image, patch_height: int, patch_width: int, fit: Fit | None
    ) -> tuple[torch.Tensor, Geometry]:
        """The network's input before it is standardised, and its geometry on the image."""
        resized, crop, geometry = self._place(image, patch_height, patch_width, self.fit if fit is None else fit)
        if image.mode != "RGB":
            raise ImageError(f"image of mode {image.mode!r}: expected 'RGB', as open_image gives it")
        source = image.convert("L") if len(self.mean) == 1 else image
        return resize_and_crop(source, resized[1], resized[0], crop, self.interpolation, self.backend), geometry

    def visible_share(self, image: Sized, patch_height: int, patch_width: int) -> float:
        """The share in [0, 1] of an image's area that the model sees; 1 where the fit cannot be changed."""
        left, top, right, bottom = self._place(image, patch_height, patch_width, self.fit)[2].box
        return (right - left) * (bottom - top) / (image.width * image.height)

    def _place(
        self, image: Sized, patch_height: int, patch_width: int, fit: Fit
    ) -> tuple[tuple[int, int], tuple[int, int, int, int], Geometry]:
        """Height and width of the resized image, the crop of it, and its geometry on the image."""
        height, width = self.input_size(image, patch_height, patch_width, fit)
        if fit == "native":
            resized, crop_size = (height, width), (height, width)
        else:
            resized, crop_size = self._size_before_crop(image, fit), (self.height, self.width)
        to_pixel = math.floor if self.rounding == "transformers" else round
        top, left = (to_pixel((side - crop_side) / 2) for side, crop_side in zip(resized, crop_size, strict=True))
        crop = (left, top, left + width, top + height)
        # Multiply before dividing, so that the edges of the image are exact.
        across = [edge * image.width / resized[1] for edge in crop[::2]]
        down = [edge * image.height / resized[0] for edge in crop[1::2]]
        box = across[0], down[0], across[1], down[1]
        return resized, crop, Geometry(image.width, image.height, box, height, width)

    def _size_before_crop(self, image: Sized, fit: Fit) -> tuple[int, int]:
        """Height and width of the resized image before it is cropped."""
        fraction = self.crop_fraction if fit == "crop" else self.squash_fraction
        height, width = (math.floor(side / fraction) for side in (self.height, self.width))
        if fit == "squash":
            return height, width
        short = min(height, width)
        if self.rounding == "transformers" and max(self.height, self.width) <= short:
            height = width = short
        # torchvision has squares only, and cuts off fractions; for other shapes timm rounds.
        if height != width:
            ratio = min(image.height / height, image.width / width)
            return round(image.height / ratio), round(image.width / ratio)
        if image.width >= image.height:
            return height, int(height * image.width / image.height)
        return int(width * image.height / image.width), width

    def _sides(self, patch_height: int, patch_width: int) -> list[tuple[str, int, int]]:
        """Name, pixels and patch of both sides: the shorter first, or that with the larger patch if both are equal."""
        sides = [("height", self.height, patch_height), ("width", self.width, patch_width)]
        return sorted(sides, key=lambda side: (side[1], -side[2]))

    def _native_size(self, image: Sized, patch_height: int, patch_width: int) -> tuple[int, int]:
        # A strip has at most as many patches in its one row as the trained square has in all.
        patches = max(1, (self.height // patch_height) * (self.width // patch_width))
        if self.rounding == "transformers":
            rows, columns = _most_patches(image, patch_height, patch_width, patches)
            return rows * patch_height, columns * patch_width
        scale = math.sqrt(self.height * self.width / (image.height * image.width))
        rows = min(patches, max(1, round(image.height * scale / patch_height)))
        columns = min(patches, max(1, round(image.width * scale / patch_width)))
        return rows * patch_height, columns * patch_width


def resize_longest(image: Image.Image, geometry: Geometry, longest_side: int) -> tuple[Image.Image, Geometry]:
    """An image resized to this longer side, and its geometry resized with it."""
    # Smaller, it looks the same by a filter of a third of the width, after rows and columns are averaged.
    resampling = Image.Resampling.HAMMING if longest_side < max(image.size) else Image.Resampling.LANCZOS
    small = image.resize(size_at(longest_side, image), resampling, reducing_gap=2.0)
    ImageFacts.of(image).resized(small.size).keep(small)
    return small, geometry.resized(*small.size)


def _most_patches(image: Sized, patch_height: int, patch_width: int, patches: int) -> tuple[int, int]:
    """Rows and columns of the image at the largest scale with at most this many patches.

    The search is that of NaFlex in transformers and timm, and ends slightly below that scale.
    """

    def grid(scale: float) -> tuple[int, int]:
        return math.ceil(image.height * scale / patch_height), math.ceil(image.width * scale / patch_width)

    low, high = 1e-6, 100.0
    while high - low >= 1e-5:
        scale = (low + high) / 2
        low, high = (scale, high) if math.prod(grid(scale)) <= patches else (low, scale)
    return grid(low)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)

"""How pictures become a model's input, and the way back from a patch to its place on the picture."""

from __future__ import annotations

import math
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange
from PIL import Image

from vitviz.arguments import named_fields, number_or_none, whole_or_none, word
from vitviz.errors import ConfigError, ImageError, choices, described
from vitviz.images import MAX_PIXELS

FITS = ("crop", "squash", "native")
INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
ROUNDINGS = ("torchvision", "transformers")


@dataclass(frozen=True)
class Geometry:
    """Where the model's input lies on the user's image, in both directions.

    Pixel coordinates run right and down from the top left corner of the image; a rectangle is ``(left, top, right,
    bottom)``. The model sees the rectangle ``box`` of the image, stretched to its input.

    Args:
        image_width, image_height: the user's image in pixels.
        box: what the model sees of it, in pixels of the image.
        input_height, input_width: the model's input in pixels.

    Raises:
        ConfigError: the box is empty or leaves the image, or the input is empty.
    """

    image_width: int
    image_height: int
    box: tuple[float, float, float, float]
    input_height: int
    input_width: int

    def __post_init__(self) -> None:
        left, top, right, bottom = self.box
        if not (0 <= left < right <= self.image_width and 0 <= top < bottom <= self.image_height):
            raise ConfigError(
                f"box {self.box}: expected a rectangle inside {self.image_width}×{self.image_height} pixels"
            )
        if self.input_height < 1 or self.input_width < 1:
            raise ConfigError(f"input of {self.input_height}×{self.input_width} pixels: both sides must be at least 1")

    def patch_rectangle(
        self, row: int, column: int, grid_height: int, grid_width: int
    ) -> tuple[float, float, float, float]:
        """The rectangle of the user's image that a patch covers."""
        left, top, right, bottom = self.box
        return (
            _edge(left, right, column, grid_width),
            _edge(top, bottom, row, grid_height),
            _edge(left, right, column + 1, grid_width),
            _edge(top, bottom, row + 1, grid_height),
        )

    def patch_at(self, x: float, y: float, grid_height: int, grid_width: int) -> tuple[int, int] | None:
        """The patch ``(row, column)`` at a point of the user's image; None where the model did not look."""
        left, top, right, bottom = self.box
        if not (left <= x < right and top <= y < bottom):
            return None
        row, column = int((y - top) * grid_height / (bottom - top)), int((x - left) * grid_width / (right - left))
        return min(row, grid_height - 1), min(column, grid_width - 1)

    def to_input(self, x: float, y: float) -> tuple[float, float]:
        """A point of the user's image in pixels of the model's input; outside of it where the model did not look."""
        left, top, right, bottom = self.box
        return (x - left) * self.input_width / (right - left), (y - top) * self.input_height / (bottom - top)

    def to_image(self, x: float, y: float) -> tuple[float, float]:
        """A point of the model's input in pixels of the user's image."""
        left, top, right, bottom = self.box
        return left + x * (right - left) / self.input_width, top + y * (bottom - top) / self.input_height

    def resized(self, image_width: int, image_height: int) -> Geometry:
        """The same place on the image resized to this size."""
        across, down = image_width / self.image_width, image_height / self.image_height
        left, top, right, bottom = self.box
        # Rounding must not carry an edge of the image past it.
        box = (left * across, top * down, min(image_width, right * across), min(image_height, bottom * down))
        return replace(self, image_width=image_width, image_height=image_height, box=box)

    def pixel_box(self) -> tuple[int, int, int, int]:
        """The pixels of the user's image of which the model saw at least half, as whole numbers; at least one pixel."""
        left, top, right, bottom = (math.floor(edge + 0.5) for edge in self.box)
        left, top = min(left, self.image_width - 1), min(top, self.image_height - 1)
        return left, top, max(right, left + 1), max(bottom, top + 1)


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """An image ready for a model.

    Args:
        image: the user's image, upright RGB.
        pixels: the model's input, ``"1 channel height width"``, standardised.
        geometry: where the pixels lie on the image.
        source: the file that the image is from, or its place in a batch, counted from 0; None where neither is known.

    Raises:
        ConfigError: the geometry is not that of the image and the pixels.
    """

    image: Image.Image
    pixels: torch.Tensor
    geometry: Geometry
    source: Path | int | None = None

    def __repr__(self) -> str:
        geometry = self.geometry
        source = "" if self.source is None else f"{self.source}: "
        image = f"{self.image.width}×{self.image.height} pixels"
        return f"PreparedImage({source}{image} as an input of {geometry.input_width}×{geometry.input_height})"

    def __post_init__(self) -> None:
        geometry = self.geometry
        if self.image.size != (geometry.image_width, geometry.image_height):
            size = f"{geometry.image_width}×{geometry.image_height}"
            raise ConfigError(f"image of {self.image.width}×{self.image.height} pixels: its geometry is for {size}")
        if self.pixels.shape[2:] != (geometry.input_height, geometry.input_width):
            expected = f"'1 channel {geometry.input_height} {geometry.input_width}'"
            raise ConfigError(f"pixels of shape {tuple(self.pixels.shape)}: the geometry expects {expected}")

    def resized(self, longest_side: int) -> PreparedImage:
        """The same input, on the user's image at another size."""
        image, geometry = resize_longest(self.image, self.geometry, longest_side)
        return PreparedImage(image, self.pixels, geometry, self.source)


@named_fields(ConfigError)
@dataclass(frozen=True)
class Preprocessing:
    """How images become a model's input. Belongs to the checkpoint, as its weights do.

    Args:
        height, width: trained size in pixels; at most 64 million together.
        mean, std: of every channel, for values in [0, 1]; their length is the number of channels, 1 or 3.
        fit: how a picture of another shape is brought to this one: ``"crop"`` resizes its shorter side and cuts out
            the centre, ``"squash"`` stretches the whole, ``"native"`` keeps its aspect ratio at about the same area,
            each side a multiple of the patch.
        crop_fraction: for ``"crop"``, the part of the shorter side that is kept, in (0, 1].
        interpolation: nearest, bilinear, bicubic or lanczos; all but nearest antialiased.
        squash_fraction: for ``"squash"``, the part of either side that is kept, in (0, 1].
        rounding: whose whole numbers. ``"torchvision"``, and with it timm and open_clip, rounds where a crop begins;
            ``"native"`` then has the sides nearest to the trained area. ``"transformers"`` rounds the beginning of a
            crop down; ``"native"`` then has the most patches that fit the trained number, as in NaFlex.

    Raises:
        ConfigError: a value is out of range.
    """

    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fit: str = "crop"
    crop_fraction: float = 1.0
    interpolation: str = "bicubic"
    squash_fraction: float = 1.0
    rounding: str = "torchvision"

    def __post_init__(self) -> None:
        sides = (self.height, self.width)
        if not all(isinstance(side, int) and side >= 1 for side in sides) or math.prod(sides) > MAX_PIXELS:
            expected = f"two whole numbers of at least 1 and at most {MAX_PIXELS:,} pixels"
            raise ConfigError(f"input of {self.height!r}×{self.width!r} pixels: expected {expected}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if not isinstance(values, tuple) or len(values) not in (1, 3) or not all(map(_is_number, values)):
                raise ConfigError(f"{name} = {values!r}: expected a tuple of 1 or 3 finite numbers")
        if len(self.mean) != len(self.std):
            raise ConfigError(f"{len(self.mean)} means and {len(self.std)} deviations: expected as many of each")
        if min(self.std) <= 0:
            raise ConfigError(f"std = {self.std}: every deviation must be above 0")
        word("fit", self.fit, FITS, ConfigError)
        for name, part in (("crop_fraction", self.crop_fraction), ("squash_fraction", self.squash_fraction)):
            if not _is_number(part) or not 0 < part <= 1:
                raise ConfigError(f"{name} = {part!r}: expected a number in (0, 1]")
        word("interpolation", self.interpolation, INTERPOLATIONS, ConfigError)
        word("rounding", self.rounding, ROUNDINGS, ConfigError)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Preprocessing:
        """The inverse of :meth:`to_dict`.

        Raises:
            ConfigError: a field is missing, unknown or out of range.
        """
        known = [field.name for field in fields(cls)]
        missing = [field.name for field in fields(cls) if field.default is MISSING and field.name not in values]
        unknown = [name for name in values if name not in known]
        if missing or unknown:
            problem = f"no field {choices(missing)}" if missing else f"unknown field {choices(unknown)}"
            raise ConfigError(f"preprocessing: {problem}; expected the fields {', '.join(known)}")
        arguments: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        return cls(**arguments)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint's metadata."""
        return asdict(self)

    def at(self, resolution: int, patch_height: int, patch_width: int) -> Preprocessing:
        """The same with another input size.

        Args:
            resolution: pixels of the shorter side, a multiple of the patch. The other side is in proportion to the
                trained one, rounded to the nearest multiple of the patch.
            patch_height, patch_width: of the model, in pixels.

        Raises:
            ConfigError: the resolution is no positive whole number or no multiple of the patch, or the input is larger
                than 64 million pixels.
        """
        (short, side, patch), (long, other_side, other_patch) = self._sides(patch_height, patch_width)
        shorter = whole_or_none(resolution)
        if shorter is None or shorter < 1 or shorter % patch:
            about = number_or_none(resolution)
            below = 0 if about is None else math.floor(about / patch) * patch
            near = choices((max(below, patch), max(below, patch) + patch))
            what = "" if about is not None else "one number, the shorter side in pixels: "
            raise ConfigError(
                f"resolution = {described(resolution)}: expected {what}a multiple of the patch's {patch} pixels: {near}"
            )
        proportional = round(shorter * other_side / side / other_patch) * other_patch
        # Of a square input with an oblong patch, rounding must not make the other side the shorter one.
        longer = max(proportional, math.ceil(shorter / other_patch) * other_patch)
        sides = {short: shorter, long: longer}
        return replace(self, height=sides["height"], width=sides["width"])

    def smaller(self, patch_height: int, patch_width: int) -> range:
        """What :meth:`at` takes as a resolution below the present one, the largest first."""
        _, side, patch = self._sides(patch_height, patch_width)[0]
        return range((side - 1) // patch * patch, 0, -patch)

    def prepare(self, image: Image.Image, patch_height: int, patch_width: int, fit: str | None = None) -> PreparedImage:
        """Resize, crop and normalise an RGB image as the checkpoint was trained.

        Args:
            image: as :func:`open_image` gives it; not changed.
            patch_height, patch_width: of the model, in pixels.
            fit: another than the checkpoint's own.

        Raises:
            ConfigError: the fit is unknown.
            ImageError: the image is not RGB.
        """
        seen, geometry = self.fit_image(image, patch_height, patch_width, fit)
        values = np.array(seen, dtype=np.float32).reshape(seen.height, seen.width, len(self.mean))
        pixels = rearrange(torch.from_numpy(values), "height width channel -> 1 channel height width")
        return PreparedImage(image, self.standardise(pixels / 255), geometry)

    def standardise(self, pixels: torch.Tensor) -> torch.Tensor:
        """``"... channel height width"`` in [0, 1] to the values that the model was trained on."""
        mean, std = (pixels.new_tensor(part) for part in (self.mean, self.std))
        return (pixels - rearrange(mean, "channel -> channel 1 1")) / rearrange(std, "channel -> channel 1 1")

    def fit_image(
        self, image: Image.Image, patch_height: int, patch_width: int, fit: str | None = None
    ) -> tuple[Image.Image, Geometry]:
        """An image resized and cropped to the model's input, in its colours, and where that lies on the image.

        Raises:
            ConfigError: the fit is unknown.
            ImageError: the image is not RGB.
        """
        fit = self.fit if fit is None else fit
        height, width = self.input_size(image, patch_height, patch_width, fit)
        if image.mode != "RGB":
            raise ImageError(f"image of mode {image.mode!r}: expected 'RGB', as open_image gives it")
        if len(self.mean) == 1:
            image = image.convert("L")
        if fit == "crop":
            return self._cut(image, *self._size_before_crop(image))
        if fit == "squash" and self.squash_fraction < 1:
            return self._cut(image, *self._enlarged(self.squash_fraction))
        whole = (0.0, 0.0, float(image.width), float(image.height))
        seen = image.resize((width, height), INTERPOLATIONS[self.interpolation])
        return seen, Geometry(image.width, image.height, whole, height, width)

    def input_size(
        self, image: Image.Image, patch_height: int, patch_width: int, fit: str | None = None
    ) -> tuple[int, int]:
        """Height and width in pixels of the model's input for an image, of which only the size is read.

        Raises:
            ConfigError: the fit is unknown.
        """
        fit = self.fit if fit is None else fit
        word("fit", fit, FITS, ConfigError)
        return self._native_size(image, patch_height, patch_width) if fit == "native" else (self.height, self.width)

    def _cut(self, image: Image.Image, height: int, width: int) -> tuple[Image.Image, Geometry]:
        """Resize to this size, then cut the model's input out of the centre, at whole pixels."""
        whole = math.floor if self.rounding == "transformers" else round
        left, top = whole((width - self.width) / 2), whole((height - self.height) / 2)
        across, down = image.width / width, image.height / height
        right, bottom = min(image.width, (left + self.width) * across), min(image.height, (top + self.height) * down)
        box = (left * across, top * down, right, bottom)
        resampling = INTERPOLATIONS[self.interpolation]
        # A strip two pixels high would grow to gigabytes; only there may the rounding differ.
        if width * height > MAX_PIXELS:
            seen = _resize_part(image, (self.width, self.height), resampling, box)
        else:
            seen = image.resize((width, height), resampling).crop((left, top, left + self.width, top + self.height))
        return seen, Geometry(image.width, image.height, box, self.height, self.width)

    def _enlarged(self, fraction: float) -> tuple[int, int]:
        """The size of which the trained size is this part."""
        # 32 / (32 / 93) is a little under 93.
        return int(self.height / fraction + 1e-6), int(self.width / fraction + 1e-6)

    def _size_before_crop(self, image: Image.Image) -> tuple[int, int]:
        height, width = self._enlarged(self.crop_fraction)
        # torchvision knows squares only; for the rest, timm rounds where it cuts off.
        if height != width:
            ratio = min(image.height / height, image.width / width)
            return round(image.height / ratio), round(image.width / ratio)
        if image.width >= image.height:
            return height, int(height * image.width / image.height)
        return int(width * image.height / image.width), width

    def _sides(self, patch_height: int, patch_width: int) -> list[tuple[str, int, int]]:
        """Name, pixels and patch of either side, the shorter one first; of a square, the one with the larger patch."""
        sides = [("height", self.height, patch_height), ("width", self.width, patch_width)]
        return sorted(sides, key=lambda side: (side[1], -side[2]))

    def _native_size(self, image: Image.Image, patch_height: int, patch_width: int) -> tuple[int, int]:
        # A strip may not have more patches in its one row than the trained square has in all.
        patches = max(1, (self.height // patch_height) * (self.width // patch_width))
        if self.rounding == "transformers":
            rows, columns = _most_patches(image, patch_height, patch_width, patches)
            return rows * patch_height, columns * patch_width
        scale = math.sqrt(self.height * self.width / (image.height * image.width))
        rows = min(patches, max(1, round(image.height * scale / patch_height)))
        columns = min(patches, max(1, round(image.width * scale / patch_width)))
        return rows * patch_height, columns * patch_width


def resize_longest(image: Image.Image, geometry: Geometry, longest_side: int) -> tuple[Image.Image, Geometry]:
    """An image with its longer side at so many pixels, and the same place on it."""
    scale = longest_side / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS), geometry.resized(width, height)


def _resize_part(
    image: Image.Image, size: tuple[int, int], resampling: Image.Resampling, box: tuple[float, float, float, float]
) -> Image.Image:
    """A part of an image resized to ``(width, height)``, at a cost that does not depend on the rest of it."""
    reach = 4
    left, top = max(0, int(box[0]) - reach), max(0, int(box[1]) - reach)
    right, bottom = min(image.width, math.ceil(box[2]) + reach), min(image.height, math.ceil(box[3]) + reach)
    # Pillow keeps the box in single precision: near zero it is exact enough.
    near = (box[0] - left, box[1] - top, box[2] - left, box[3] - top)
    return image.crop((left, top, right, bottom)).resize(size, resampling, box=near)


def _most_patches(image: Image.Image, patch_height: int, patch_width: int, patches: int) -> tuple[int, int]:
    """Rows and columns of the image at the largest scale that has at most so many patches.

    The search is that of NaFlex in transformers and timm, which ends a little below that scale.
    """

    def grid(scale: float) -> tuple[int, int]:
        return math.ceil(image.height * scale / patch_height), math.ceil(image.width * scale / patch_width)

    low, high = 1e-6, 100.0
    while high - low >= 1e-5:
        scale = (low + high) / 2
        low, high = (scale, high) if math.prod(grid(scale)) <= patches else (low, scale)
    return grid(low)


def _edge(low: float, high: float, index: int, count: int) -> float:
    """Where the part ``index`` of ``count`` equal parts from ``low`` to ``high`` begins."""
    return high if index == count else low + (high - low) * index / count


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)

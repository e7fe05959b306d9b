"""Preprocessing by the user's own transform, processor or function."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageStat

from vitviz.errors.kinds import ConfigError, ImageError, VitvizError
from vitviz.errors.messages import describe
from vitviz.images.geometry import Geometry
from vitviz.images.image_facts import ImageFacts
from vitviz.images.kinds import MAX_PIXELS
from vitviz.images.measuring import (
    Box,
    Placement,
    Values,
    check_repeatable,
    measure_placement,
    measure_values,
    noise,
)
from vitviz.images.preprocessing import Fit, PreparedImage, Preprocessing, Sized
from vitviz.images.resizing import Crop, to_image
from vitviz.images.transforms import Transform, as_transform

# Size of the pictures on which a function is measured.
COMMON = (640, 480)
# Pictures whose input is placed without measuring again.
CACHED_SIZES = 256
# Of plain borders, which some functions trim.
GREYS = ("black", "white", "gray")
# Cells of a picture, of which two are swapped, and the share of the change that may lie elsewhere.
CELLS, ELSEWHERE = 4, 0.2


class CallablePreprocessing(Preprocessing):
    """The user's own function from a picture to an input, which is called for every picture.

    The input is the function's own. Test pictures tell its size, its mean and deviation, and where the input lies on
    pictures of each size. ``fit`` is ``"squash"`` if the input shows whole pictures, else ``"crop"``; neither it nor
    the resolution can be changed.

    Args:
        function: from a PIL image (or ``image=`` an array, or a tensor ``"channel height width"`` of levels or of
            values from 0 to 1) to a tensor ``"channel height width"``, or to a mapping with one as transformers'
            processors and albumentations return. Its input shows an upright rectangle of the picture, padded or not.

    Raises:
        ConfigError: the function fails, is random, or does to test pictures what vitviz cannot follow.
    """

    function: Callable[..., Any]
    transform: Transform
    source: str

    def __init__(self, function: Callable[..., Any]) -> None:
        source = f"preprocessing = {describe(function)}"
        try:
            picture = noise(*COMMON)
            transform = as_transform(function, picture)
            check_repeatable(transform, noise(COMMON[0] // 2, COMMON[1] // 2))
            values = measure_values(transform, *COMMON)
            placement = measure_placement(transform, values, *COMMON)
            _check_content(transform, values, placement)
            side = min(COMMON)
            square = measure_placement(transform, values, side, side)
        except Exception as error:  # The function is the user's, and may raise anything.
            raise ConfigError(f"{source}: {_message(error)}") from None
        shown = (placement.box[2] - placement.box[0]) * (placement.box[3] - placement.box[1])
        fit: Fit = "crop" if shown < 0.98 * math.prod(COMMON) else "squash"
        super().__init__(square.height, square.width, values.mean, values.std, fit)
        locate = lru_cache(CACHED_SIZES)(partial(measure_placement, transform, values))
        own = {"function": function, "transform": transform, "source": source, "_locate": locate}
        for name, value in own.items():
            object.__setattr__(self, name, value)

    # Two functions may do the same to test pictures, and differ.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.function,)

    def __repr__(self) -> str:
        return f"CallablePreprocessing({self.source.removeprefix('preprocessing = ')}: {self.height}×{self.width})"

    @property
    def values(self) -> Values:
        return Values(self.mean, self.std)

    def to_dict(self) -> dict[str, Any]:
        """Raises :class:`ConfigError`: a function cannot be written into a checkpoint."""
        raise ConfigError(f"{self.source}: a function, which no file can hold; expected a vitviz.Preprocessing")

    def at(self, resolution: int, patch_height: int, patch_width: int) -> Preprocessing:
        """The same, for its own resolution alone."""
        own = min(self.height, self.width)
        if resolution != own:
            instead = f"resolution = {own}, or a vitviz.Preprocessing, whose size can be changed"
            raise ConfigError(f"resolution = {describe(resolution)}: {self.source} sets it; expected {instead}")
        return self

    def smaller(self, patch_height: int, patch_width: int) -> range:
        return range(0)

    def visible_share(self, image: Sized, patch_height: int, patch_width: int) -> float:
        return 1.0

    def input_size(self, image: Sized, patch_height: int, patch_width: int, fit: Fit | None = None) -> tuple[int, int]:
        if fit not in (None, self.fit):
            instead = "none, or a vitviz.Preprocessing, whose fit can be changed"
            raise ConfigError(f"fit = {describe(fit)}: {self.source} sets it; expected {instead}")
        placement = self.locate(image)
        height, width = placement.height, placement.width
        if height < patch_height or width < patch_width:
            expected = f"at least one patch, {patch_height}×{patch_width}"
            raise ImageError(f"{self.source}: an input of {height}×{width} pixels; expected {expected}")
        return height // patch_height * patch_height, width // patch_width * patch_width

    def locate(self, image: Sized) -> Placement:
        """Where the input lies on pictures of this size.

        Raises:
            ImageError: it is no upright rectangle of such a picture.
        """
        try:
            placement: Placement = self._locate(image.width, image.height)  # type: ignore[attr-defined]
        except Exception as error:  # As above.
            size = f"of pictures of {image.width}×{image.height} pixels"
            raise ImageError(f"{self.source}: {size}: {_message(error)}") from None
        return placement

    def apply(self, image: Image.Image) -> torch.Tensor:
        """The function's own input for an image, ``"channel height width"``.

        Raises:
            ImageError: the function fails.
        """
        try:
            return self.transform(image)
        except Exception as error:  # As above.
            raise ImageError(f"{self.source}: {_message(error)}") from None

    def prepare(self, image: Image.Image, patch_height: int, patch_width: int, fit: Fit | None = None) -> PreparedImage:
        """The function's own input, without the part of a patch on the right and below.

        Where the function pads, the image of the result is the padded one.

        Raises:
            ConfigError: the fit is another than the function's.
            ImageError: the function fails for the image, or takes another part of it than of test pictures, such as by
                trimming its border.
        """
        height, width = self.input_size(image, patch_height, patch_width, fit)
        placement, pixels = self.locate(image), self.apply(image)
        size = (placement.height, placement.width)
        if pixels.shape[1:] != size or not bool(pixels.isfinite().all()):
            found = f"an input of shape {tuple(pixels.shape)}, or with values that are not finite"
            raise ImageError(f"{self.source}: {found}; expected {len(self.mean), *size}, as of test pictures")
        if not self._lies_there(image, pixels, placement.box):
            raise ImageError(f"{self.source}: it takes another part of this picture than of test pictures of its size")
        shown, box = pad_image(image, placement)
        right, bottom = (
            low + (high - low) * part / whole
            for low, high, part, whole in zip(box[:2], box[2:], (width, height), size[::-1], strict=True)
        )
        # Rounding must not carry an edge of the image past it.
        box = (*box[:2], min(right, shown.width), min(bottom, shown.height))
        geometry = Geometry(*shown.size, box, height, width).resized(*ImageFacts.of(shown).size)
        return PreparedImage(shown, pixels[None, :, :height, :width], geometry)

    def _lies_there(self, image: Image.Image, pixels: torch.Tensor, box: Box) -> bool:
        """Whether an input lies in a box of its image: two swapped cells of the image change it where they lie."""
        swapped, cells = swap_cells(image, box)
        changed = self.apply(swapped)
        if changed.shape != pixels.shape:
            return False
        change = (changed - pixels).square().sum(0)
        elsewhere = change.clone()
        for cell in cells:
            rows, columns = (_spread(cell[at::2], box[at::2], change.shape[1 - at]) for at in (1, 0))
            elsewhere[rows, columns] = 0
        return bool(elsewhere.sum() <= ELSEWHERE * change.sum())

    def fit_image(
        self, image: Image.Image, patch_height: int, patch_width: int, fit: Fit | None = None
    ) -> tuple[Image.Image, Geometry]:
        prepared = self.prepare(image, patch_height, patch_width, fit)
        return to_image(self.values.undo(prepared.pixels[0])), prepared.geometry


def _message(error: Exception) -> str:
    """An error's message, with its kind unless it is vitviz's own."""
    return str(error) if isinstance(error, VitvizError) else f"{type(error).__name__}: {error}"


def pad_image(image: Image.Image, placement: Placement) -> tuple[Image.Image, tuple[float, float, float, float]]:
    """An image with the borders that an input shows beside it, and the input's box on it.

    Raises:
        ImageError: it would have more than 64 million pixels.
    """
    left, top, right, bottom = placement.box
    before = [max(0, round(-edge)) for edge in (left, top)]
    after = [max(0, round(edge - side)) for edge, side in zip((right, bottom), image.size, strict=True)]
    padded = image
    if any((*before, *after)):
        width, height = (sum(sides) for sides in zip(image.size, before, after, strict=True))
        if width * height > MAX_PIXELS:
            size = f"image of {image.width}×{image.height} pixels"
            raise ImageError(f"{size}: padded to {width}×{height}; expected at most {MAX_PIXELS:,} pixels")
        padded = Image.new("RGB", (width, height), placement.padding)
        padded.paste(image, (before[0], before[1]))
        ImageFacts.of(image).padded(before, padded.size).keep(padded)
    box = (left + before[0], top + before[1], right + before[0], bottom + before[1])
    return padded, (max(0.0, box[0]), max(0.0, box[1]), min(box[2], padded.width), min(box[3], padded.height))


def swap_cells(image: Image.Image, box: Box) -> tuple[Image.Image, list[Crop]]:
    """An image of which two cells in a box are swapped, the plainest and the richest, and these cells.

    All its levels remain, by which functions such as automatic contrast change an image.
    """
    left, top = (math.ceil(max(0, edge)) for edge in box[:2])
    width, height = (
        (math.floor(min(edge, side)) - low) // CELLS
        for edge, side, low in zip(box[2:], image.size, (left, top), strict=True)
    )
    if width < 1 or height < 1:
        return image, []
    starts = [(left + column * width, top + row * height) for row in range(CELLS) for column in range(CELLS)]
    cells = [(x, y, x + width, y + height) for x, y in starts]
    plain, *_, rich = sorted(cells, key=lambda cell: sum(ImageStat.Stat(image.crop(cell)).var))
    swapped = image.copy()
    swapped.paste(image.crop(rich), plain)
    swapped.paste(image.crop(plain), rich)
    return swapped, [plain, rich]


def _spread(cell: tuple[int, ...], box: tuple[float, ...], length: int) -> slice:
    """Pixels of an input's side that a cell of its box may change, with those that interpolation reaches."""
    scale = length / (box[1] - box[0])
    reach = length / 16 + 2 * max(1.0, scale)
    first, last = (scale * (edge - box[0]) for edge in cell)
    return slice(max(0, math.floor(first - reach)), math.ceil(last + reach))


def bordered(colour: str) -> Image.Image:
    """A picture of grey blobs inside a plain border."""
    width, height = COMMON
    blobs = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 8), np.uint8)).convert("RGB")
    picture = Image.new("RGB", COMMON, colour)
    picture.paste(blobs.resize((width // 2, height // 2), Image.Resampling.BILINEAR), (width // 4, height // 5))
    return picture


def _check_content(transform: Transform, values: Values, placement: Placement) -> None:
    """Check that the inputs of pictures with plain borders lie where that of a ramp does, with their values.

    Raises:
        ConfigError: the transform treats pictures by their content.
    """
    for picture in map(bordered, GREYS):
        found = values.undo(transform(picture)).mean(0)
        shown, box = pad_image(picture, placement)
        expected = shown.convert("L").resize((placement.width, placement.height), Image.Resampling.BILINEAR, box)
        levels = torch.from_numpy(np.array(expected)) / 255
        if found.shape != levels.shape or float((found - levels).abs().mean()) > 0.05:
            raise ConfigError(
                "it treats each picture by its content, such as by trimming borders or equalising levels; expected the "
                "same for all pictures"
            )

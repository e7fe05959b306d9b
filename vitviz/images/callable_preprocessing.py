"""Preprocessing by the user's own function, which is called for every picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.errors.messages import describe, legible
from vitviz.images.geometry import Geometry, Sized, as_box
from vitviz.images.image_facts import ImageFacts
from vitviz.images.preprocessing import CHANNELS, Fit, PreparedImage, Preprocessing
from vitviz.images.resizing import to_image

# The picture for which a function is called first.
SAMPLE = Image.linear_gradient("L").resize((640, 480)).convert("RGB")
# Entries of a mapping that a function returns: transformers' processors, and albumentations.
ENTRIES = ("pixel_values", "image")
EXPECTED = "expected a tensor 'channel height width' of finite floating-point numbers, of 1 or 3 channels"


class CallablePreprocessing(Preprocessing):
    """The user's own function from a picture to an input, which is called for every picture.

    It is called once for a sample, which tells the size of its inputs. Neither that nor the fit can be changed.

    Args:
        function: from a PIL image (albumentations': ``image=`` an array) to a tensor ``"channel height width"``, or a
            mapping with one under ``"pixel_values"`` or ``"image"``.
        box: what of a picture its input shows: left, top, right and lower edge in pixels of the picture, or a function
            from its width and height to these. None if that is unknown: maps are then drawn on the input itself.
        moments: mean and deviation by which it standardises. None if they are unknown: an input is then drawn with its
            values scaled to their range.

    Raises:
        ImageError: the function fails, or returns no input.
    """

    function: Callable[..., Any]
    box: Any
    moments: tuple[tuple[float, ...], tuple[float, ...]] | None

    def __init__(self, function: Callable[..., Any], box: Any = None, moments: Any = None) -> None:
        self.__dict__.update(function=function, box=box, moments=moments)
        channels, height, width = self.apply(SAMPLE).shape
        mean, std = ((each * channels)[:channels] for each in moments or ((0.0,), (1.0,)))
        super().__init__(height, width, mean, std, "squash")

    def __repr__(self) -> str:
        return f"CallablePreprocessing({describe(self.function)}: {self.height}×{self.width})"

    @property
    def description(self) -> str:
        return f"preprocessing = {describe(self.function)}"

    def to_dict(self) -> dict[str, Any]:
        """Raises :class:`ConfigError`: a function cannot be written into a checkpoint."""
        raise ConfigError(f"{self.description}: a function, which no file can hold; expected a vitviz.Preprocessing")

    def at(self, resolution: int, patch_height: int, patch_width: int) -> Preprocessing:
        """The same, for its own resolution alone."""
        if resolution != (own := min(self.height, self.width)):
            raise ConfigError(
                f"resolution = {describe(resolution)}: {self.description} sets it; expected resolution = {own}, or a "
                "vitviz.Preprocessing, whose size can be changed"
            )
        return self

    def smaller(self, patch_height: int, patch_width: int) -> range:
        return range(0)

    def input_size(self, image: Sized, patch_height: int, patch_width: int, fit: Fit | None = None) -> tuple[int, int]:
        size = self.apply(image).shape[1:] if isinstance(image, Image.Image) else (self.height, self.width)
        return self._whole_patches(size, (patch_height, patch_width), fit)

    def _whole_patches(self, size: Sequence[int], patch: tuple[int, int], fit: Fit | None) -> tuple[int, int]:
        if fit not in (None, self.fit):
            raise ConfigError(
                f"fit = {describe(fit)}: {self.description} sets it; expected none, or a vitviz.Preprocessing, whose "
                "fit can be changed"
            )
        height, width = (side // patch_side * patch_side for side, patch_side in zip(size, patch, strict=True))
        if not height or not width:
            raise ImageError(
                f"{self.description}: an input of {size[0]}×{size[1]} pixels; expected at least one patch, "
                f"{patch[0]}×{patch[1]}"
            )
        return height, width

    def apply(self, image: Image.Image) -> torch.Tensor:
        """The function's own input for an image, ``"channel height width"``.

        Raises:
            ImageError: the function fails, or returns no input.
        """
        try:
            value = call(self.function, image)
        except Exception as error:  # The function is the user's, and may raise anything.
            raise ImageError(f"{self.description}: {type(error).__name__}: {legible(str(error))}") from error
        if not (
            isinstance(value, torch.Tensor)
            and value.ndim == 3
            and len(value) in CHANNELS
            and value.is_floating_point()
            and value.numel()
            and value.isfinite().all()
        ):
            kind = f"{describe(value)}{f' of {value.dtype}' if isinstance(value, torch.Tensor) else ''}"
            raise ImageError(f"{self.description}: it returns {kind}; {EXPECTED}")
        return value.as_subclass(torch.Tensor).float().cpu().contiguous()

    def prepare(self, image: Image.Image, patch_height: int, patch_width: int, fit: Fit | None = None) -> PreparedImage:
        """The function's own input, without the part of a patch on the right and below.

        Without a box, the image of the result is the input itself.

        Raises:
            ConfigError: the fit is another than the function's.
            ImageError: the function fails for the image, or the box leaves it.
        """
        whole, facts = self.apply(image), ImageFacts.of(image)
        height, width = self._whole_patches(whole.shape[1:], (patch_height, patch_width), fit)
        pixels = whole[:, :height, :width]
        if self.box is None:
            drawn, sentence = self._drawn(pixels)
            ImageFacts((*facts.assumptions, sentence), facts.size, drawn.size, is_input=True).keep(drawn)
            return PreparedImage(drawn, pixels[None], Geometry(width, height, (0, 0, width, height), height, width))
        left, top, right, bottom = self._box_on(*facts.size)
        right, bottom = left + (right - left) * width / whole.shape[2], top + (bottom - top) * height / whole.shape[1]
        return PreparedImage(image, pixels[None], Geometry(*facts.size, (left, top, right, bottom), height, width))

    def fit_image(
        self, image: Image.Image, patch_height: int, patch_width: int, fit: Fit | None = None
    ) -> tuple[Image.Image, Geometry]:
        prepared = self.prepare(image, patch_height, patch_width, fit)
        return self._drawn(prepared.pixels[0])[0], prepared.geometry

    def _drawn(self, pixels: torch.Tensor) -> tuple[Image.Image, str]:
        """An input as a picture, and a sentence on it."""
        low, high = pixels.aminmax()
        mean, std = (pixels.new_tensor(each)[:, None, None] for each in (self.mean, self.std))
        values, how = pixels * std + mean, "its standardisation undone"
        if self.moments is None:
            values, how = (pixels - low) / (high - low).clamp_min(1e-30), "its values scaled to their range"
        return to_image(values).convert("RGB"), (
            f"it is shown as {describe(self.function)} makes it for the model, {how}: box= of vitviz.load says what "
            "that shows of the picture"
        )

    def _box_on(self, width: int, height: int) -> tuple[float, float, float, float]:
        edges = self.box(width, height) if callable(self.box) else self.box
        box = as_box(edges)
        if box is None or not (0 <= box[0] < box[2] <= width and 0 <= box[1] < box[3] <= height):
            raise ImageError(
                f"box = {describe(edges)}: expected left, top, right and lower edge inside the picture of "
                f"{width}×{height} pixels"
            )
        return box


@torch.no_grad()
def call(function: Callable[..., Any], image: Image.Image) -> Any:
    """What a function makes of an RGB picture: the array or tensor in a mapping, in a batch of one, channels first."""
    is_of_arrays = type(function).__module__.partition(".")[0] == "albumentations"
    # A copy, since Image.thumbnail changes its picture.
    value = function(image=np.array(image)) if is_of_arrays else function(image.copy())
    if isinstance(value, Mapping):
        value = next((value[name] for name in ENTRIES if name in value), value)
    while isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
        # Arrays of pictures have their channels last.
        value = value.movedim(2, 0) if value.ndim == 3 and value.shape[0] not in CHANNELS else value
    return value[0] if getattr(value, "ndim", 0) == 4 and len(value) == 1 else value

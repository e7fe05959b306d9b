"""What is known of a picture beside its pixels: the size of its file, and what opening it assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from PIL import Image

FACTS_KEY = "vitviz"
NO_BORDER = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class ImageFacts:
    """What opening an image assumed and changed, kept in the image's ``info``.

    Args:
        assumptions: a sentence each.
        size: width and height of its file, upright.
        reduced: width and height of the image, smaller if it was reduced while it was decoded.
        border: pixels of ``size`` beside the picture, on the left, top, right and bottom, if a function padded it.
    """

    assumptions: tuple[str, ...] = ()
    size: tuple[int, int] = (0, 0)
    reduced: tuple[int, int] = (0, 0)
    border: tuple[float, float, float, float] = NO_BORDER

    def keep(self, image: Image.Image) -> None:
        """Keep the facts in an image, if there are any."""
        if self.assumptions or self.size != self.reduced or self.border != NO_BORDER:
            image.info[FACTS_KEY] = self

    @classmethod
    def of(cls, image: Image.Image) -> ImageFacts:
        """The facts of an image that :func:`open_image` opened; of any other image none, and its own size."""
        facts = image.info.get(FACTS_KEY)
        if not isinstance(facts, ImageFacts):
            return cls((), image.size, image.size)
        # A copy may have been cropped or resized.
        return facts if facts.reduced == image.size else cls(facts.assumptions, image.size, image.size)

    def resized(self, size: tuple[int, int]) -> ImageFacts:
        """The facts of a copy of the image at this size, with regions in its own pixels in place of the file's."""
        across, down = size[0] / self.size[0], size[1] / self.size[1]
        left, top, right, bottom = self.border
        return replace(self, size=size, reduced=size, border=(left * across, top * down, right * across, bottom * down))

    def padded(self, before: Sequence[int], padded_size: tuple[int, int]) -> ImageFacts:
        """The facts of the image with a border.

        Args:
            before: pixels of the image that the border has on the left and at the top.
            padded_size: width and height of the image with its border.
        """
        across, down = self.size[0] / self.reduced[0], self.size[1] / self.reduced[1]
        left, top = before[0] * across, before[1] * down
        width, height = round(padded_size[0] * across), round(padded_size[1] * down)
        border = left, top, width - self.size[0] - left, height - self.size[1] - top
        return replace(self, size=(width, height), reduced=padded_size, border=border)

    @property
    def picture_size(self) -> tuple[float, float]:
        """Width and height of the file without the border."""
        left, top, right, bottom = self.border
        return self.size[0] - left - right, self.size[1] - top - bottom

    def on_picture(self, box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        """A rectangle in pixels of ``size`` in those of the picture without the border, which it may leave."""
        left, top = self.border[:2]
        return box[0] - left, box[1] - top, box[2] - left, box[3] - top

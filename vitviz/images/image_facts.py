"""What is known of a picture beside its pixels: the size of its file, and what opening it assumed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from PIL import Image

FACTS_KEY = "vitviz"


@dataclass(frozen=True)
class ImageFacts:
    """What opening an image assumed and changed, kept in the image's ``info``.

    Args:
        assumptions: a sentence each.
        size: width and height of its file, upright.
        reduced: width and height of the image, smaller if it was reduced while it was decoded.
        is_input: whether the image is what a function makes of that file, and nobody says where it lies on it.
    """

    assumptions: tuple[str, ...] = ()
    size: tuple[int, int] = (0, 0)
    reduced: tuple[int, int] = (0, 0)
    is_input: bool = False

    def keep(self, image: Image.Image) -> None:
        """Keep the facts in an image, if there are any."""
        if self.assumptions or self.size != self.reduced or self.is_input:
            image.info[FACTS_KEY] = self

    @classmethod
    def of(cls, image: Image.Image) -> ImageFacts:
        """The facts of an image that :func:`open_image` opened; of any other image none, and its own size."""
        facts = image.info.get(FACTS_KEY)
        if not isinstance(facts, ImageFacts):
            return cls((), image.size, image.size)
        # A copy may have been cropped or resized.
        return facts if facts.reduced == image.size else facts.resized(image.size)

    def resized(self, size: tuple[int, int]) -> ImageFacts:
        """The facts of a copy of the image at this size, which has coordinates of its own."""
        return replace(self, size=size, reduced=size)

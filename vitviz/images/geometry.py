"""Where the model's input lies on the user's image, and where each patch lies on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from vitviz.errors.arguments import number_or_none
from vitviz.errors.kinds import ConfigError


class Sized(Protocol):
    """Anything with a width and a height in pixels, such as an image in this or another process."""

    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...


@dataclass(frozen=True)
class Geometry:
    """Where the model's input lies on the user's image.

    Pixel coordinates run right and down from the top left corner of the image; a rectangle is ``(left, top, right,
    bottom)``. The model sees the rectangle ``box`` of the image, stretched to its input.

    Args:
        image_width, image_height: the user's image in pixels.
        box: the rectangle that the model sees, in pixels of the image.
        input_height, input_width: the model's input in pixels.

    Raises:
        ConfigError: the box is empty or leaves the image, or the input is empty.

    >>> analysis.prepared.geometry.box
    (0.0, 0.0, 451.0, 300.0)
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

    @property
    def is_whole(self) -> bool:
        """Whether the model sees the whole image."""
        return self.box == (0, 0, self.image_width, self.image_height)

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
        """The patch ``(row, column)`` at a point of the user's image; None outside of the model's input."""
        left, top, right, bottom = self.box
        if not (left <= x < right and top <= y < bottom):
            return None
        row, column = int((y - top) * grid_height / (bottom - top)), int((x - left) * grid_width / (right - left))
        return min(row, grid_height - 1), min(column, grid_width - 1)

    def resized(self, image_width: int, image_height: int) -> Geometry:
        """The same geometry on the image resized to this size."""
        across, down = image_width / self.image_width, image_height / self.image_height
        left, top, right, bottom = self.box
        # Rounding must not carry an edge of the image past it.
        box = (left * across, top * down, min(right * across, image_width), min(bottom * down, image_height))
        return replace(self, image_width=image_width, image_height=image_height, box=box)


def _edge(low: float, high: float, index: int, count: int) -> float:
    """The lower edge of part ``index`` when the range from ``low`` to ``high`` is cut into ``count`` equal parts."""
    return high if index == count else low + (high - low) * index / count


def as_box(value: Any) -> tuple[float, float, float, float] | None:
    """Four numbers, left, top, right and lower edge; None for anything else."""
    items = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(items, tuple | list) or len(items) != 4:
        return None
    left, top, right, bottom = map(number_or_none, items)
    return None if left is None or top is None or right is None or bottom is None else (left, top, right, bottom)


def size_at(longest_side: int, image: Sized) -> tuple[int, int]:
    """Width and height of an image at this longer side."""
    scale = longest_side / max(image.width, image.height)
    return max(1, round(image.width * scale)), max(1, round(image.height * scale))

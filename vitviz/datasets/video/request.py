"""The request of a video: the map of every frame, and how it is drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vitviz.datasets.request import BatchRequest, MapRequest
from vitviz.errors.arguments import integer, number
from vitviz.errors.kinds import ConfigError
from vitviz.images.preprocessing import Fit
from vitviz.visualization.heatmaps import FIGURE_SIDE, Style
from vitviz.visualization.scales import FittedScale
from vitviz.weights import Model

SCHEMA_VERSION = 2
MIN_SIDE, MAX_SIDE = 64, 4096
MAX_SMOOTHING_SECONDS = 10.0


@dataclass(frozen=True)
class VideoRequest:
    """A model, the map of every frame, and how it is drawn.

    Args:
        model: as :func:`vitviz.load` gives it.
        map: the map of every frame; a class-specific method without a target explains each frame's most probable class.
        fit, resolution: as :func:`vitviz.analyze` takes them.
        style: of every frame; its scale is fitted to the maps of all frames together.
        smoothing_seconds: standard deviation of the Gaussian by which maps are averaged over time before they are
            drawn, at most 10; 0 for no averaging.
        longest_side: of the drawn picture in pixels, 64 to 4096; a smaller clip keeps its size.
        caption: whether the colour bar and the caption are below the picture.

    Raises:
        ConfigError: a value is out of range, or the scale is already fitted to other maps.
        MethodError: the model does not support the map.
    """

    model: Model
    map: MapRequest
    fit: Fit | None = None
    resolution: int | None = None
    style: Style = field(default_factory=Style)
    smoothing_seconds: float = 0.0
    longest_side: int = FIGURE_SIDE
    caption: bool = True

    def __post_init__(self) -> None:
        self.to_batch_request()
        if isinstance(self.style.scale, FittedScale):
            raise ConfigError("style: its scale was fitted to other maps; expected the name of a scale, or None")
        number(
            "smoothing_seconds",
            self.smoothing_seconds,
            lambda value: 0 <= value <= MAX_SMOOTHING_SECONDS,
            f"a number of seconds from 0 to {MAX_SMOOTHING_SECONDS:g}",
            ConfigError,
        )
        if not MIN_SIDE <= integer("longest_side", self.longest_side, 1) <= MAX_SIDE:
            raise ConfigError(f"longest_side = {self.longest_side}: expected {MIN_SIDE} to {MAX_SIDE} pixels")

    def to_batch_request(self) -> BatchRequest:
        """The same request for single pictures."""
        return BatchRequest(self.model, (self.map,), (), self.fit, self.resolution)

    def to_json(self) -> dict[str, Any]:
        """The request as JSON; equal requests make equal videos of a clip."""
        return {
            **self.to_batch_request().to_json(),
            "schema": SCHEMA_VERSION,
            "style": self.style.to_json(),
            "smoothing_seconds": self.smoothing_seconds,
            "longest_side": self.longest_side,
            "caption": self.caption,
        }

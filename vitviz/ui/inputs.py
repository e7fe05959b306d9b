"""Input settings, and the origin of an analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vitviz.images.preprocessing import Fit
from vitviz.ui.models import ModelChoice
from vitviz.ui.normalize import resolution_step
from vitviz.ui.pictures import Upload
from vitviz.weights import Model


class InputSettings(NamedTuple):
    """Fit and resolution of a picture at the model's input.

    Args:
        fit: a name in :data:`vitviz.images.preprocessing.FITS`; None for the model's own.
        resolution: the shorter side in pixels, :data:`vitviz.ui.state.NATIVE`, or None as trained.
    """

    fit: Fit | None = None
    resolution: int | str | None = None

    def pixels(self, model: Model, size: tuple[int, int]) -> int | None:
        """The resolution as :func:`vitviz.analyze` takes it, for a picture of this width and height."""
        if isinstance(self.resolution, str):
            step = resolution_step(model)
            return max(step, min(size) // step * step)
        return self.resolution


@dataclass(frozen=True)
class Origin:
    """Model, picture and settings of an analysis.

    Args:
        choice: the model.
        upload: the picture.
        size: its width and height in pixels.
        settings: fit and resolution.
        resolution: the argument of :func:`vitviz.analyze`.
        hidden_share: of the picture's area, in [0, 1], that the model's own crop would hide, where it is shown whole
            for this reason; otherwise 0.
    """

    choice: ModelChoice
    upload: Upload
    size: tuple[int, int]
    settings: InputSettings
    resolution: int | None
    hidden_share: float = 0.0

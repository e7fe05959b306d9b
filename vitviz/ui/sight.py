"""What the model sees of a picture: how it is fitted into the input, and at which resolution."""

from __future__ import annotations

import re
from math import lcm
from typing import Any, NamedTuple

import gradio as gr

from vitviz.errors.kinds import ConfigError
from vitviz.ui.models import ModelChoice
from vitviz.ui.photo import Upload
from vitviz.weights import Model

TRAINED, NATIVE = "as trained", "the picture's own"
# Of the trained resolution.
LARGER = (1.5, 2, 3, 4)
FITS = (
    ("whole picture, stretched", "squash"),
    ("centre, cropped", "crop"),
    ("whole picture, its own shape", "native"),
)


class Sight(NamedTuple):
    """How a picture is brought to a model's input.

    Args:
        fit: a name in :data:`vitviz.images.preprocessing.FITS`.
        resolution: the shorter side in pixels, :data:`TRAINED` or :data:`NATIVE`.
    """

    fit: str
    resolution: str = TRAINED

    def pixels(self, model: Model, size: tuple[int, int]) -> int | None:
        """The resolution as :func:`vitviz.analyze` takes it, of a picture so many pixels wide and high.

        Raises:
            ConfigError: it is no number.
        """
        if self.resolution == TRAINED:
            return None
        if self.resolution == NATIVE:
            step = _step(model)
            return max(step, min(size) // step * step)
        found = re.fullmatch(r"\s*(\d{1,5})\s*(?:px|pixels)?\s*", self.resolution, re.ASCII)
        if found is None:
            legal = f"a number of pixels, {TRAINED!r} or {NATIVE!r}"
            raise ConfigError(f"resolution {self.resolution[:40]!r}: expected {legal}")
        return int(found[1])


class Seen(NamedTuple):
    """What the page shows the analysis of: a model, the path of a picture, and how the one was brought to the other."""

    choice: ModelChoice
    path: str
    sight: Sight

    @classmethod
    def of(cls, choice: ModelChoice, upload: Upload, sight: Sight) -> Seen:
        """An uploaded picture."""
        return cls(choice, str(upload.path), sight)


class SightPicker:
    """The controls of fit and resolution, made for the model of the start."""

    def __init__(self, model: Model) -> None:
        with gr.Accordion("What the model sees", open=False, elem_id="vv-sight"):
            self.fit = gr.Dropdown(list(FITS), value=model.preprocessing.fit, label="Fit", elem_id="vv-fit")
            self.resolution = gr.Dropdown(
                resolution_choices(model),
                value=TRAINED,
                label="Resolution",
                info="shorter side in pixels; choose, or write any multiple of the patch",
                allow_custom_value=True,
                elem_id="vv-resolution",
            )

    @property
    def components(self) -> list[Any]:
        return [self.fit, self.resolution]

    def read(self, fit: Any, resolution: Any) -> Sight:
        """What the controls say."""
        return Sight(fit, str(resolution))

    def for_model(self, model: Model) -> tuple[list[dict[str, Any]], Sight]:
        """Updates of ``components`` for another model, which starts as it was trained."""
        own = Sight(model.preprocessing.fit)
        return [gr.update(value=own.fit), gr.update(choices=resolution_choices(model), value=own.resolution)], own


def resolution_choices(model: Model) -> list[tuple[str, str]]:
    """What the menu of resolutions offers; any other multiple of the patch can be written."""
    trained, step = min(model.preprocessing.height, model.preprocessing.width), _step(model)
    sizes = dict.fromkeys(round(trained * times / step) * step for times in LARGER)
    larger = [(f"{size} pixels", str(size)) for size in sizes if size > trained]
    return [(f"as trained, {trained} pixels", TRAINED), *larger, ("the picture's own", NATIVE)]


def _step(model: Model) -> int:
    """What every resolution is a multiple of."""
    config = model.network.config
    return lcm(config.patch_height, config.patch_width)

"""The picture of a map as lines of Python that make it with the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vitviz.attention.precision import PRECISIONS
from vitviz.attribution import METHODS
from vitviz.attribution.methods import ClassTarget, LayerNumber, Parameter
from vitviz.ui.models import START, ModelChoice
from vitviz.ui.panels import Settings
from vitviz.ui.photo import Upload
from vitviz.ui.sight import Sight
from vitviz.visualization.heatmaps import Style
from vitviz.weights import Model
from vitviz.weights.text_tower import TextPrompt


def as_python(
    model: Model, start: Model, choice: ModelChoice, upload: Upload, size: tuple[int, int], settings: Settings
) -> str:
    """The lines that make the picture of a map, and save it under the name of its method.

    A picture and a checkpoint of the visitor's own are called as their files are, and looked for where the lines run.

    Args:
        model: that made the map.
        start: the model with which the page opened.
        choice, upload: the model and the picture as they were chosen.
        size: of the picture, its width and height in pixels.
        settings: which map, and how it is drawn.

    Raises:
        ConfigError: there is no such resolution.
    """
    said = settings.parameters[settings.method]
    text = said.get("target")
    about = {"target": "words"} if isinstance(text, TextPrompt) else {}
    written = _parameters(settings, model) | about
    arguments = ", ".join([_text(settings.method), *(f"{name}={argument}" for name, argument in written.items())])
    query = said.get("query")
    mark = f", mark={query}" if isinstance(query, tuple) else ""
    lines = [
        "import vitviz",
        "from vitviz import Style",
        *(["from vitviz.weights.text_tower import open_text_tower"] if about else []),
        "",
        *_model(model, start, choice),
        f"analysis = vitviz.analyze({_text(upload.name)}, model, {_sight(model, size, settings.sight)})",
        *([f"words = open_text_tower(model).target({_text(text.text)})"] if isinstance(text, TextPrompt) else []),
        f"heatmap = analysis.map({arguments})",
        f'heatmap.overlay({_style(settings.style)}{mark}).save("{settings.method}.png")',
    ]
    return "\n".join(lines) + "\n"


def _model(model: Model, start: Model, choice: ModelChoice) -> list[str]:
    """The lines that open the model."""
    own = Path(choice.files[0]).name if len(choice.files) == 1 else model.name
    source = start.name if choice.run == START else choice.source or own
    precision = next(name for name, dtype in PRECISIONS.items() if dtype == model.network.precision)
    facts = {**dict(choice.overrides), **({} if precision == "float32" else {"precision": precision})}
    said = ", ".join([_text(source), *(f"{name}={_value(fact)}" for name, fact in facts.items())])
    state = [] if choice.step is None else [f"model = vitviz.open_snapshot(model, {choice.step})"]
    return [f"model = vitviz.load({said})", *state]


def _sight(model: Model, size: tuple[int, int], sight: Sight) -> str:
    # An input of another shape has another shorter side.
    resolution = sight.pixels(model, size)
    return f"fit={_text(sight.fit)}" + ("" if resolution is None else f", resolution={resolution}")


def _parameters(settings: Settings, model: Model) -> dict[str, str]:
    """The parameters that are others than those of the library."""
    said = settings.parameters[settings.method]
    return {
        part.name: _argument(part, said[part.name], model)
        for part in METHODS[settings.method].parameters
        if said[part.name] != _default(part, model)
    }


def _default(parameter: Parameter, model: Model) -> Any:
    if isinstance(parameter, LayerNumber):
        return parameter.default % model.network.config.depth
    return parameter.default


def _argument(parameter: Parameter, argument: Any, model: Model) -> str:
    # Of two classes of one name, the library finds neither by it.
    if isinstance(parameter, ClassTarget) and isinstance(argument, int):
        label = model.labels[argument]
        return _value(label if model.labels.count(label) == 1 else argument)
    return _value(argument)


def _style(style: Style) -> str:
    look = f"opacity={style.opacity}, smooth={style.smooth}, grid={style.grid}"
    return f"Style({_text(style.colormap)}, {look})"


def _value(argument: Any) -> str:
    return _text(argument) if isinstance(argument, str) else repr(argument)


def _text(said: str) -> str:
    """A string as Python reads it, in double quotes; what cannot be seen, or turns the line round, is escaped."""
    quoted = json.dumps(said, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in quoted)

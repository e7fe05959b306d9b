"""What a link says of the page's model, its picture and its map; the explorer adds what it shows of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import urlencode

from vitviz.attention.layout import TokenLayout
from vitviz.attribution import METHODS, Method
from vitviz.attribution.methods import Choice, ClassTarget, HeadNumber, LayerNumber, Number, Parameter, TokenQuery
from vitviz.ui.controls import (
    class_choices,
    has_query,
    head_choices,
    shown,
    starting_value,
    token_query,
    token_value,
    told_apart,
    value,
)
from vitviz.ui.models import START, ModelChoice
from vitviz.ui.panels import PLAIN_METHOD, PLAIN_STYLE, Settings, default_settings, refusal
from vitviz.ui.photo import Upload
from vitviz.ui.pictures import EXAMPLES, Pictures
from vitviz.ui.sight import FITS, TRAINED, Sight
from vitviz.visualization.heatmaps import COLORMAPS, Style
from vitviz.weights import BUNDLED, ZOO, Model
from vitviz.weights.text_tower import MAX_TEXT_CHARS, TextPrompt, reads_text

# The tab of the maps, as the page and a link call it.
MAPS = "maps"
LOOK = ("colormap", "opacity", "smooth", "grid")
OF_A_MAP = ("tab", "method", "words", *LOOK)
# Before the name of a parameter, and before what is said of the second model and picture.
PARAMETER, SECOND = "p.", "second."
ID = re.compile(r"[\w-]{22}", re.ASCII)
STEP = re.compile(r"\d{1,12}", re.ASCII)
HUB = re.compile(r"hf:[\w.-]{1,96}/[\w.-]{1,96}(@[\w./-]{1,96})?", re.ASCII)
# Puts the map's words into the address of the page, and lets stand what others wrote there. Words that are as they were
# are not written: when the page opens, its address may ask for a map that is still to come.
WRITE_MAP_WORDS = """(said) => {
  const page = document.documentElement;
  if ((page.dataset.mapWords ?? "") === said) return;
  page.dataset.mapWords = said;
  clearTimeout(page.writingMapWords);
  // Browsers refuse more than a few changes a second.
  page.writingMapWords = setTimeout(() => {
    const isOwn = (name) => OF_A_MAP.includes(name) || name.startsWith("PARAMETER");
    const others = [...new URLSearchParams(location.search)].filter(([name]) => !isOwn(name));
    const query = new URLSearchParams([...others, ...new URLSearchParams(said)]).toString();
    history.replaceState(history.state, "", location.pathname + (query && `?${query}`) + location.hash);
  }, 400);
}""".replace("OF_A_MAP", json.dumps(OF_A_MAP)).replace("PARAMETER", PARAMETER)


class Wanted(NamedTuple):
    """A model and a picture that a link asks for; None where it does not say.

    Args:
        model: a name of the menu, or ``hf:OWNER/NAME``.
        picture: the two parts of :meth:`vitviz.ui.pictures.Pictures.word`.
        step: of the training, of a model with snapshots; None for the last.
    """

    model: str | None = None
    picture: tuple[str, str] | None = None
    step: int | None = None

    @property
    def choice(self) -> ModelChoice:
        """The model; the one of the start where it does not say."""
        return (START if self.model is None else ModelChoice(self.model))._replace(step=self.step)


class Linked(NamedTuple):
    """What a link asks for; None where it does not say.

    Args:
        first: what the page shows.
        second: what it is compared with; nothing where it says nothing.
        fit, resolution: as :class:`vitviz.ui.sight.Sight` has them.
        map: words as :func:`map_words` writes them, which have a meaning only for a model and a picture.
    """

    first: Wanted = Wanted()
    second: Wanted = Wanted()
    fit: str | None = None
    resolution: str | None = None
    map: tuple[tuple[str, str], ...] = ()


def link_of(model: Model, choice: ModelChoice, upload: Upload, sight: Sight, pictures: Pictures) -> str:
    """The part of a link behind ``?``: what differs from the page as it opens, as far as others can have it too."""
    said = {}
    if not choice.overrides and _is_named(choice.source):
        said["model"] = choice.source
    if choice.step is not None and (said or choice.run == START):
        said["step"] = str(choice.step)
    said.update([pictures.word(upload)])
    if sight.fit != model.preprocessing.fit:
        said["fit"] = sight.fit
    if sight.resolution != TRAINED:
        said["resolution"] = sight.resolution
    return urlencode(said)


def beside_words(name: str, upload: Upload | None, pictures: Pictures) -> str:
    """The part of a link behind ``?`` that is about what the first is compared with.

    Args:
        name: of the second model in its menu; empty for the first one's.
        upload: the second picture; None for the first one.
        pictures: knows the ids of pictures.
    """
    said = {"model": name} if name else {}
    if upload is not None:
        said.update([pictures.word(upload)])
    return urlencode({f"{SECOND}{key}": word for key, word in said.items()})


def read_link(query: Mapping[str, str]) -> Linked:
    """What a link asks for; what is none of the legal values counts as not said."""
    fit = query.get("fit") if query.get("fit") in [fit for _, fit in FITS] else None
    first, second, step = _wanted(query, ""), _wanted(query, SECOND), query.get("step", "")
    if STEP.fullmatch(step):
        first = first._replace(step=int(step))
    of_the_map = tuple((name, word) for name, word in query.items() if name in OF_A_MAP or name.startswith(PARAMETER))
    # Any other number is refused where it is used, with a message.
    return Linked(first, second, fit, query.get("resolution"), of_the_map)


def _wanted(query: Mapping[str, str], before: str) -> Wanted:
    model, example, picture = (query.get(f"{before}{name}", "") for name in ("model", "example", "picture"))
    # The second may be the model of the start, beside another one.
    named = _is_named(model) or (before == SECOND and model == START.source)
    if example in EXAMPLES:
        return Wanted(model if named else None, ("example", example))
    return Wanted(model if named else None, ("picture", picture) if ID.fullmatch(picture) else None)


def _is_named(model: str) -> bool:
    return model in (*BUNDLED, *ZOO) or HUB.fullmatch(model) is not None


def map_words(model: Model, settings: Settings) -> str:
    """The part of a link behind ``?`` that is about the map: what differs from the one with which the page opens.

    ``method`` is a name in :data:`vitviz.METHODS`, and with it ``tab`` the tab that the link opens. ``p.NAME`` is a
    parameter of the method as its control shows it: layers and heads counted from 0, a token as ``cls``,
    ``register 1``, ``patches`` or ``3,5``, a class by its label. ``words`` is a text that the map is about; the look is
    ``colormap``, ``opacity``, ``smooth`` and ``grid``.
    """
    said: dict[str, str] = {}
    if settings.method != PLAIN_METHOD:
        said = {"tab": MAPS, "method": settings.method}
    for parameter in METHODS[settings.method].parameters:
        argument = settings.parameters[settings.method][parameter.name]
        if isinstance(argument, TextPrompt):
            said["words"] = argument.text
        elif argument != starting_value(parameter, model):
            said[f"{PARAMETER}{parameter.name}"] = _word(parameter, argument, model)
    for name in LOOK:
        chosen = getattr(settings.style, name)
        if chosen != getattr(PLAIN_STYLE, name):
            said[name] = _plainly(chosen)
    return urlencode(said)


def read_map(said: Mapping[str, str], model: Model, layout: TokenLayout, sight: Sight) -> Settings:
    """The settings that these words stand for with a model and an image's layout; what is not legal there is left out.

    Args:
        said: as :func:`map_words` writes them.
        sight: how the image was brought to the model's input.
    """
    plain = default_settings(model)
    name, words = said.get("method", PLAIN_METHOD), said.get("words", "").strip()
    if not (0 < len(words) <= MAX_TEXT_CHARS and reads_text(model)):
        words = ""
    if name not in METHODS or not _can_be_drawn(METHODS[name], model, words):
        # Parameters of what there is not are parameters of nothing else.
        name, said = PLAIN_METHOD, {look: said[look] for look in LOOK if look in said}
    chosen: dict[str, Any] = {}
    for parameter in METHODS[name].parameters:
        found = _legal(parameter, said.get(f"{PARAMETER}{parameter.name}", ""), model, layout)
        if found is not None:
            chosen[parameter.name] = value(parameter, found)
    if METHODS[name].class_specific and words:
        chosen["target"] = TextPrompt(words)
    # These have one control for all methods.
    shared = [part.name for part in METHODS[name].parameters if isinstance(part, TokenQuery | ClassTarget)]
    parameters = {
        each: {**first, **{key: chosen[key] for key in chosen if key in first and (each == name or key in shared)}}
        for each, first in plain.parameters.items()
    }
    return replace(plain, method=name, parameters=parameters, sight=sight, style=_style(said))


def _can_be_drawn(method: Method, model: Model, words: str) -> bool:
    is_about_something = not method.class_specific or bool(model.labels or words)
    return is_about_something and refusal(method, model) is None


def _word(parameter: Parameter, argument: Any, model: Model) -> str:
    """An argument as its control shows it."""
    if isinstance(parameter, ClassTarget) and argument is not None:
        return told_apart(model.labels, argument)
    return _plainly(shown(parameter, argument))


def _plainly(said: Any) -> str:
    if isinstance(said, bool):
        return str(said).lower()
    return f"{said:.10g}" if isinstance(said, float) else str(said)


def _legal(parameter: Parameter, word: str, model: Model, layout: TokenLayout) -> Any:
    """What the control of a parameter shows for a word of a link; None where there is no such value."""
    match parameter:
        case Choice():
            return word if word in [title for title, _ in parameter.options] else None
        case Number():
            number = _number(word, parameter.minimum, parameter.maximum)
            return None if number is None or (parameter.whole and not number.is_integer()) else number
        case LayerNumber():
            layer = _number(word, 0, model.network.config.depth - 1)
            return None if layer is None or not layer.is_integer() else int(layer)
        case HeadNumber():
            return word if word in head_choices(model) else None
        case TokenQuery():
            query = token_query(word)
            return token_value(query) if has_query(model, layout, query) else None
        case ClassTarget():
            return dict(class_choices(model.labels)).get(word)


def _style(said: Mapping[str, str]) -> Style:
    look: dict[str, Any] = {}
    if said.get("colormap") in COLORMAPS:
        look["colormap"] = said["colormap"]
    opacity = _number(said.get("opacity", ""), 0, 1)
    if opacity is not None:
        look["opacity"] = opacity
    look |= {name: said[name] == "true" for name in ("smooth", "grid") if said.get(name) in ("true", "false")}
    return replace(PLAIN_STYLE, **look)


def _number(word: str, least: float, most: float) -> float | None:
    """A number between two bounds; None for anything else."""
    if re.fullmatch(r"\d{1,6}(\.\d{1,12})?", word, re.ASCII) is None:
        return None
    return float(word) if least <= float(word) <= most else None

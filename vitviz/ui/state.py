"""The state of a page as one value, from which its link, its JSON and its lines of Python are written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from typing import Any

from vitviz.attention.layout import Query
from vitviz.attribution import METHODS
from vitviz.attribution.json_values import fields as object_fields
from vitviz.attribution.json_values import number
from vitviz.attribution.methods import MethodName
from vitviz.attribution.parameters import (
    Choice,
    Kind,
    Number,
    Switch,
    Token,
    pair_of,
    plain_of,
    values_of,
)
from vitviz.attribution.requests import MAX_INDEX, Bounds
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import quote
from vitviz.evaluation.probes import PROBES
from vitviz.images.colours import COLOR_PROFILES, ColorProfile
from vitviz.images.preprocessing import FITS, Fit
from vitviz.ui.pictures import EXAMPLES, picture_name
from vitviz.visualization.colormaps import COLORMAPS, ColormapName
from vitviz.visualization.heatmaps import Style
from vitviz.visualization.scales import PERCENTILES, SCALES, ScaleName, percentile_pair
from vitviz.weights import BUNDLED, ZOO

START = "start"
"""The word of links for the model with which the app starts."""
NATIVE = "native"
"""The resolution that stands for the picture's own."""
MAX_RESOLUTION = 99_999
HUB_MODEL = re.compile(r"hf:\w[\w.-]{0,95}/\w[\w.-]{0,95}(@[\w./-]{1,96})?", re.ASCII)
PACKAGE_MODEL = re.compile(r"timm:[\w.]{1,128}|open_clip:[\w-]{1,64}/[\w.-]{1,64}", re.ASCII)
APP_MODEL = re.compile(r"app:[\w.-]{1,96}", re.ASCII)
OWN_MODEL = re.compile(r"own:[\w-]{22}", re.ASCII)
MISSING_MODEL = f"own:{'-' * 22}"
"""The model of a view whose link names one that nobody can open."""
# Of any model and picture.
ANYTHING = Bounds(other_picture=picture_name)
LAYOUTS = ("one", "slide", "two", "difference", "alike")
PAIRED_LAYOUTS = ("two", "difference", "alike")
PANELS = ("", "compare", "switches", "probes", "save", "model", "guide")
# Links of a longer tour open its last step.
GUIDE_STEPS = 6
MAX_VIEWS, MAX_PINS, MAX_OFF = 2, 6, 4096
# Of a colour scale: single precision holds their difference.
END = Number(-1e30, 1e30, 0.01)
TOKEN_METHOD: MethodName = "attention"
FIRST_PROBE = next(iter(PROBES))
# The fields of a view that its analysis depends on; the others are about the map.
INPUT_FIELDS = ("model", "step", "picture", "frame", "white", "color_profile", "fit", "resolution")


class ModelName(Kind):
    """The name of a model; a visitor's own checkpoint has no text in a link."""

    def read(self, value: object, bounds: Bounds, field: str) -> str:
        if isinstance(value, str):
            is_named = value == "" or value in BUNDLED or value in ZOO
            if is_named or any(
                pattern.fullmatch(value) for pattern in (HUB_MODEL, PACKAGE_MODEL, APP_MODEL, OWN_MODEL)
            ):
                return value
        raise MethodError(
            f"{field} = {quote(value)}: expected a name of the menu, hf:OWNER/NAME, timm:NAME, or nothing"
        )

    def parse(self, text: str) -> str:
        return "" if text == START else text

    def text(self, value: str) -> str:
        return value or START


class PictureName(Kind):
    """``example:NAME`` or ``picture:ID``."""

    def read(self, value: object, bounds: Bounds, field: str) -> str:
        return picture_name(field, value)


class Resolution(Number):
    """The shorter side in pixels, or :data:`NATIVE`."""

    def read(self, value: object, bounds: Bounds, field: str) -> Any:
        return NATIVE if value == NATIVE else super().read(value, bounds, field)


class Percentiles(Kind):
    """The lower and the upper end of a robust scale."""

    def read(self, value: object, bounds: Bounds, field: str) -> tuple[float, float]:
        return percentile_pair(field, value)

    def parse(self, text: str) -> tuple[Any, ...]:
        return tuple(map(plain_of, text.split(",")))


class Place(Kind):
    """Layer and head, or row and column."""

    def read(self, value: object, bounds: Bounds, field: str) -> tuple[int, int]:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise MethodError(f"{field} = {quote(value)}: expected a list of two whole numbers")
        first, second = (int(number(field, index, 0, MAX_INDEX - 1, whole=True)) for index in value)
        return first, second

    def parse(self, text: str) -> tuple[int, int]:
        return pair_of(text)

    def text(self, value: tuple[int, int]) -> str:
        return f"{value[0]}.{value[1]}"


@dataclass(frozen=True)
class Several(Kind):
    """Different values of one kind; ``is_sorted`` where their order means nothing."""

    each: Kind
    most: int
    is_sorted: bool = False

    def read(self, value: object, bounds: Bounds, field: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) > self.most:
            found = f"{len(value):,} entries" if isinstance(value, list | tuple) else quote(value)
            raise MethodError(f"{field} = {found}: expected a list of at most {self.most:,}")
        items = dict.fromkeys(self.each.keep(item, bounds, field) for item in value)
        return tuple(sorted(items) if self.is_sorted else items)

    def parse(self, text: str) -> tuple[Any, ...]:
        return tuple(self.each.parse(item) for item in text.split(";") if item)

    def text(self, value: tuple[Any, ...]) -> str:
        return ";".join(map(self.each.text, value))


def of_kind(kind: Kind, default: Any, *, none: str = "", key: str = "") -> Any:
    """A field of a state.

    Args:
        kind: of its values.
        default: of the field.
        none: the word of links for None; empty if None is not legal.
        key: of the field in links; its name with hyphens by default.
    """
    return field(default=default, metadata={"kind": kind, "none": none, "key": key})


def fields_of(state: Any) -> dict[str, Field[Any]]:
    """The fields of a state that have a kind, by their keys in links."""
    found = [each for each in fields(state) if "kind" in each.metadata]
    return {each.metadata["key"] or each.name: each for each in found}


class State:
    """A value whose fields are checked when it is made."""

    def __post_init__(self) -> None:
        for each in fields_of(self).values():
            value = getattr(self, each.name)
            if value is not None or not each.metadata["none"]:
                object.__setattr__(self, each.name, each.metadata["kind"].keep(value, ANYTHING, each.name))


@dataclass(frozen=True)
class View(State):
    """One canvas: a model, a picture and a map.

    Args:
        model: a name of the menu, ``hf:OWNER/NAME``, ``app:NAME`` for a file of the operator's, ``own:TOKEN`` for a
            visitor's own checkpoint, or empty for the model with which the app starts.
        step: training step of a model with snapshots; None for the last.
        picture: ``example:NAME`` or ``picture:ID``.
        fit: a name in :data:`vitviz.images.preprocessing.FITS`; None for the model's own.
        resolution: the shorter side in pixels, :data:`vitviz.ui.state.NATIVE`, or None for the trained one.
        method: a name in :data:`vitviz.METHODS`.
        parameters: the method's parameters by name, as JSON; a missing one has its default.
        pins: tokens whose maps stand below the canvas.
        heads_off: layers and heads that are switched off.
        patches_off: rows and columns of patches that are switched off.
        probe: a name in :data:`vitviz.evaluation.probes.PROBES`.
        probe_parameters: the probe's parameters, as the method's.
        frame: index in a clip, from 0; None for a picture.
        white: the value of white in a picture of 16 bits, whose black is 0; None for that of its format.
        color_profile: as :func:`vitviz.analyze` takes it.
        alike: row and column of the square to which what is alike is lit in the layout ``alike``; None for no square
            of this view.

    Raises:
        MethodError: a field is not legal for any model.
    """

    model: str = of_kind(ModelName(), "")
    step: int | None = of_kind(Number(0, 10**12 - 1), None, none="last")
    picture: str = of_kind(PictureName(), f"example:{EXAMPLES[0]}")
    fit: Fit | None = of_kind(Choice(FITS), None, none="own")
    resolution: int | str | None = of_kind(Resolution(1, MAX_RESOLUTION), None, none="trained")
    method: MethodName = of_kind(Choice(METHODS), TOKEN_METHOD)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    pins: tuple[Query, ...] = of_kind(Several(Token(), MAX_PINS), ())
    heads_off: tuple[tuple[int, int], ...] = of_kind(Several(Place(), MAX_OFF, is_sorted=True), (), key="heads-off")
    patches_off: tuple[tuple[int, int], ...] = of_kind(Several(Place(), MAX_OFF, is_sorted=True), (), key="patches-off")
    probe: str = of_kind(Choice(PROBES), FIRST_PROBE)
    probe_parameters: Mapping[str, Any] = field(default_factory=dict)
    frame: int | None = of_kind(Number(0, 10**6 - 1), None, none="none")
    white: int | None = of_kind(Number(1, 2**31 - 1), None, none="format")
    color_profile: ColorProfile | None = of_kind(Choice(COLOR_PROFILES), None, none="own")
    alike: tuple[int, int] | None = of_kind(Place(), None, none="none")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, record in (("parameters", METHODS[self.method]), ("probe_parameters", PROBES[self.probe])):
            value = getattr(self, name)
            given = dict(value) if isinstance(value, Mapping) else value
            object.__setattr__(self, name, values_of(record.parameters, given, ANYTHING, name, as_state=True))

    @property
    def input(self) -> dict[str, Any]:
        """The fields that the analysis depends on: two views with the same show the same analysis."""
        return {name: getattr(self, name) for name in INPUT_FIELDS}


class Views(Kind):
    """The views of a page."""

    def read(self, value: object, bounds: Bounds, field: str) -> tuple[View, ...]:
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_VIEWS:
            raise MethodError(f"{field} = {quote(value)}: expected a list of 1 or {MAX_VIEWS} views")
        names = [each.name for each in fields(View)]
        views = (
            (view if isinstance(view, View) else View(**object_fields(f"{field}[{index}]", view, names)))
            for index, view in enumerate(value)
        )
        return tuple(views)


@dataclass(frozen=True)
class PageState(State):
    """The state of a page.

    Args:
        views: one or two.
        layout: a name in :data:`LAYOUTS`; in ``alike``, two pictures by one model have one basis of colours.
        divider: where the picture begins beside the map in the layout ``slide``, in [0, 1].
        colormap: a name in :data:`vitviz.visualization.colormaps.COLORMAPS`.
        opacity: of the colours over the picture, in [0, 1].
        fade: whether weak values are faded, so that the picture shows through.
        drain: whether the picture is paler and darker under the map.
        smooth: whether colours are interpolated between the centres of patches.
        grid: whether the borders of the patches are drawn.
        outliers: whether patches of outlying norm are marked.
        scale: from values to colours, a name in :data:`vitviz.visualization.SCALES`; None chooses one from the values
            of each map.
        percentiles: lower and upper end of a robust scale.
        low, high: values at the ends of the colours, of a scale that is held; None for those of each map.
        shared_scale: whether all cells of the sheet have one scale.
        own_scales: whether each of two maps has a scale of its own, where both could share one; None for maps of two
            classes alone.
        alike_layer: whose features the layout ``alike`` compares; None for the layer that finds places again best.
        panel: the open panel, a name in :data:`PANELS`.
        guide: step of the tour, from 0.

    Raises:
        MethodError: a field is not legal.
    """

    views: tuple[View, ...] = of_kind(Views(), (View(method="rollout"),))
    layout: str = of_kind(Choice(LAYOUTS), "one")
    divider: float = of_kind(Number(0, 1, 0.01), 0.5)
    colormap: ColormapName = of_kind(Choice(COLORMAPS), "inferno")
    opacity: float = of_kind(Number(0, 1, 0.01), 0.85)
    fade: bool = of_kind(Switch(), True)
    drain: bool = of_kind(Switch(), True)
    smooth: bool = of_kind(Switch(), True)
    grid: bool = of_kind(Switch(), False)
    outliers: bool = of_kind(Switch(), False)
    scale: ScaleName | None = of_kind(Choice(SCALES), None, none="automatic")
    percentiles: tuple[float, float] = of_kind(Percentiles(), PERCENTILES)
    low: float | None = of_kind(END, None, none="own")
    high: float | None = of_kind(END, None, none="own")
    shared_scale: bool = of_kind(Switch(), False, key="shared")
    own_scales: bool | None = of_kind(Switch(), None, none="automatic", key="own-scales")
    alike_layer: int | None = of_kind(Number(0, MAX_INDEX - 1), None, none="best", key="alike-layer")
    panel: str = of_kind(Choice(PANELS), "")
    guide: int = of_kind(Number(0, GUIDE_STEPS - 1), 0)

    @classmethod
    def from_json(cls, value: object) -> PageState:
        """The state of a JSON object; a missing field has its default.

        Raises:
            MethodError: a field is unknown or not legal.
        """
        return cls(**object_fields("state", value, [field.name for field in fields(cls)]))

    def to_json(self) -> dict[str, Any]:
        """The state as :meth:`from_json` reads it."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @property
    def style(self) -> Style:
        """The drawing style of the maps."""
        return Style(**{each.name: getattr(self, each.name) for each in fields(Style) if hasattr(self, each.name)})

    @classmethod
    def of_request(cls, request: Mapping[str, Any]) -> tuple[PageState, int]:
        """The state of a request, and the index of the view that it is about.

        Raises:
            MethodError: the state is not legal, or has no such view.
        """
        state = cls.from_json(request.get("state"))
        return state, int(number("index", request.get("index"), 0, len(state.views) - 1, whole=True))

    def with_view(self, index: int, view: View) -> PageState:
        """The state with one view replaced."""
        return replace(self, views=(*self.views[:index], view, *self.views[index + 1 :]))


# The view with which the page opens.
FIRST_VIEW: View = View(method="rollout")

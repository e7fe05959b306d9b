"""The state of a page as one value, from which its link, its JSON and its lines of Python are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from vitviz.attention.layout import Query
from vitviz.attribution import METHODS
from vitviz.attribution.json_values import fields as object_fields
from vitviz.attribution.json_values import number, switch, word
from vitviz.attribution.methods import MethodName
from vitviz.attribution.requests import MAX_INDEX, Bounds, token_of
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import quote
from vitviz.evaluation.probes import PROBES
from vitviz.images.colours import COLOR_PROFILES, ColorProfile
from vitviz.images.preprocessing import FITS, Fit
from vitviz.ui.arguments import kept_picture, scale_of, values_of
from vitviz.ui.pictures import EXAMPLES, PICTURE, is_picture
from vitviz.visualization.colormaps import COLORMAPS, ColormapName
from vitviz.visualization.heatmaps import Style
from vitviz.visualization.scales import PERCENTILES, ScaleName, percentile_pair
from vitviz.weights import BUNDLED, ZOO

LAYOUTS = ("one", "slide", "two", "difference")
PAIRED_LAYOUTS = ("two", "difference")
PANELS = ("", "compare", "switches", "probes", "save", "model", "guide")
GUIDE_STEPS = 6
MAX_VIEWS, MAX_PINS, MAX_OFF = 2, 6, 4096
MAX_STEP, MAX_RESOLUTION, MAX_FRAME, MAX_WHITE = 10**12 - 1, 99_999, 10**6 - 1, 2**31 - 1
NATIVE = "native"
"""The resolution that stands for the picture's own."""
TOKEN_METHOD: MethodName = "attention"
FIRST_PROBE = next(iter(PROBES))
HUB_MODEL = re.compile(r"hf:\w[\w.-]{0,95}/\w[\w.-]{0,95}(@[\w./-]{1,96})?", re.ASCII)
OWN_MODEL = re.compile(r"own:[\w-]{22}", re.ASCII)

ANYTHING = Bounds(other_picture=kept_picture)
# The fields of a view that its analysis depends on; the others are about the map.
INPUT_FIELDS = ("model", "step", "picture", "frame", "white", "color_profile", "fit", "resolution")


@dataclass(frozen=True)
class View:
    """One canvas: a model, a picture and a map.

    Args:
        model: a name of the menu, ``hf:OWNER/NAME``, ``own:TOKEN`` for a visitor's own checkpoint, or empty for the
            model with which the app starts.
        step: training step of a model with snapshots; None for the last.
        picture: ``example:NAME`` or ``picture:ID``.
        fit: a name in :data:`vitviz.images.preprocessing.FITS`; None for the model's own.
        resolution: the shorter side in pixels, :data:`NATIVE`, or None for the trained one.
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

    Raises:
        MethodError: a field is not legal for any model.
    """

    model: str = ""
    step: int | None = None
    picture: str = f"example:{EXAMPLES[0]}"
    fit: Fit | None = None
    resolution: int | str | None = None
    method: MethodName = TOKEN_METHOD
    parameters: Mapping[str, Any] = field(default_factory=dict)
    pins: tuple[Query, ...] = ()
    heads_off: tuple[tuple[int, int], ...] = ()
    patches_off: tuple[tuple[int, int], ...] = ()
    probe: str = FIRST_PROBE
    probe_parameters: Mapping[str, Any] = field(default_factory=dict)
    frame: int | None = None
    white: int | None = None
    color_profile: ColorProfile | None = None

    def __post_init__(self) -> None:
        if not is_model(self.model):
            expected = "expected a name of the menu, hf:OWNER/NAME, or nothing"
            raise MethodError(f"model = {quote(self.model)}: {expected}")
        if self.step is not None:
            number("step", self.step, 0, MAX_STEP, whole=True)
        if not is_picture(self.picture):
            raise MethodError(f"picture = {quote(self.picture)}: {PICTURE}")
        if self.frame is not None:
            number("frame", self.frame, 0, MAX_FRAME, whole=True)
        if self.white is not None:
            number("white", self.white, 1, MAX_WHITE, whole=True)
        if self.color_profile is not None:
            word("color_profile", self.color_profile, COLOR_PROFILES)
        if self.fit is not None:
            word("fit", self.fit, FITS)
        if self.resolution not in (None, NATIVE):
            number("resolution", self.resolution, 1, MAX_RESOLUTION, whole=True)
        word("method", self.method, METHODS)
        word("probe", self.probe, PROBES)
        for name, record in (("parameters", METHODS[self.method]), ("probe_parameters", PROBES[self.probe])):
            value = getattr(self, name)
            given = dict(value) if isinstance(value, Mapping) else value
            object.__setattr__(self, name, values_of(record.parameters, given, ANYTHING, name, as_state=True))
        object.__setattr__(self, "pins", _unique("pins", self.pins, MAX_PINS, partial(token_of, layout=None)))
        for name in ("heads_off", "patches_off"):
            object.__setattr__(self, name, tuple(sorted(_unique(name, getattr(self, name), MAX_OFF, _pair))))

    @property
    def input(self) -> dict[str, Any]:
        """The fields that the analysis depends on: two views with the same show the same analysis."""
        return {name: getattr(self, name) for name in INPUT_FIELDS}


@dataclass(frozen=True)
class PageState:
    """The state of a page.

    Args:
        views: one or two.
        layout: a name in :data:`LAYOUTS`.
        divider: where the picture begins beside the map in the layout ``slide``, in [0, 1].
        colormap: a name in :data:`vitviz.visualization.colormaps.COLORMAPS`.
        opacity: of the colours over the picture, in [0, 1].
        fade: whether weak values are faded, so that the picture shows through.
        smooth: whether colours are interpolated between the centres of patches.
        grid: whether the borders of the patches are drawn.
        outliers: whether patches of outlying norm are marked.
        scale: from values to colours, a name in :data:`vitviz.visualization.SCALES`; None chooses one from the values
            of each map.
        percentiles: lower and upper end of a robust scale.
        shared_scale: whether all cells of the sheet have one scale.
        panel: the open panel, a name in :data:`PANELS`.
        guide: step of the tour, from 0.

    Raises:
        MethodError: a field is not legal.
    """

    views: tuple[View, ...] = field(default_factory=lambda: (FIRST_VIEW,))
    layout: str = "one"
    divider: float = 0.5
    colormap: ColormapName = "inferno"
    opacity: float = 0.7
    fade: bool = True
    smooth: bool = False
    grid: bool = False
    outliers: bool = False
    scale: ScaleName | None = None
    percentiles: tuple[float, float] = PERCENTILES
    shared_scale: bool = False
    panel: str = ""
    guide: int = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.views) <= MAX_VIEWS:
            raise MethodError(f"views = {len(self.views)} views: expected 1 or {MAX_VIEWS}")
        for name, legal in (("layout", LAYOUTS), ("colormap", COLORMAPS), ("panel", PANELS)):
            word(name, getattr(self, name), legal)
        for name in ("divider", "opacity"):
            object.__setattr__(self, name, number(name, getattr(self, name), 0, 1))
        for name in ("fade", "smooth", "grid", "outliers", "shared_scale"):
            switch(name, getattr(self, name))
        scale_of("scale", self.scale)
        object.__setattr__(self, "percentiles", percentile_pair("percentiles", self.percentiles))
        object.__setattr__(self, "guide", int(number("guide", self.guide, 0, GUIDE_STEPS - 1, whole=True)))

    @classmethod
    def from_json(cls, value: object) -> PageState:
        """The state of a JSON object; a missing field has its default.

        Raises:
            MethodError: a field is unknown or not legal.
        """
        values = dict(object_fields("state", value, [field.name for field in fields(cls)]))
        if "views" in values:
            views = values["views"]
            if not isinstance(views, list) or not 1 <= len(views) <= MAX_VIEWS:
                raise MethodError(f"views = {quote(views)}: expected a list of 1 or {MAX_VIEWS} views")
            names = [field.name for field in fields(View)]
            values["views"] = tuple(
                View(**object_fields(f"views[{index}]", view, names)) for index, view in enumerate(views)
            )
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """The state as :meth:`from_json` reads it."""
        return plain_json({field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def style(self) -> Style:
        """The drawing style of the maps."""
        look = {name: getattr(self, name) for name in ("colormap", "opacity", "smooth", "grid", "fade", "scale")}
        return Style(**look, percentiles=self.percentiles)

    def with_view(self, index: int, view: View) -> PageState:
        """The state with one view replaced."""
        return replace(self, views=(*self.views[:index], view, *self.views[index + 1 :]))


def plain_json(value: Any) -> Any:
    """A state, or a part of one, as JSON."""
    if isinstance(value, View):
        return {field.name: plain_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain_json(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain_json(item) for item in value]
    return value


def is_model(value: object) -> bool:
    """Whether a value is the name of a model in a state."""
    if not isinstance(value, str):
        return False
    named = value == "" or value in BUNDLED or value in ZOO
    return named or HUB_MODEL.fullmatch(value) is not None or OWN_MODEL.fullmatch(value) is not None


def _pair(name: str, value: object) -> tuple[int, int]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise MethodError(f"{name} = {quote(value)}: expected a list of two whole numbers")
    first, second = (int(number(name, index, 0, MAX_INDEX - 1, whole=True)) for index in value)
    return first, second


def _unique(name: str, value: object, max_count: int, read: Callable[[str, object], Any]) -> tuple[Any, ...]:
    """The items of a list as a function reads them, each once."""
    if not isinstance(value, list | tuple) or len(value) > max_count:
        text = f"{len(value):,} entries" if isinstance(value, list | tuple) else quote(value)
        raise MethodError(f"{name} = {text}: expected a list of at most {max_count:,}")
    return tuple(dict.fromkeys(read(name, item) for item in value))


# The view with which the page opens.
FIRST_VIEW: View = View(method="rollout")

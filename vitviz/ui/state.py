"""What a page shows, as one value: the link, the JSON and the lines of Python of a page are all written from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from vitviz.attention.layout import Query
from vitviz.attribution import METHODS
from vitviz.attribution.methods import ClassTarget, Parameter
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import quote
from vitviz.evaluation.probes import PROBES
from vitviz.images.preprocessing import FITS
from vitviz.ui.arguments import MAX_INDEX, Bounds, number, scale_of, switch, target_json, token_of, values_of, word
from vitviz.ui.arguments import fields as object_fields
from vitviz.ui.pictures import EXAMPLES, PICTURE, is_picture
from vitviz.visualization.heatmaps import COLORMAPS, Style
from vitviz.visualization.scales import PERCENTILES, percentile_pair
from vitviz.weights import BUNDLED, ZOO

LAYOUTS = ("one", "slide", "two", "difference")
PAIRED_LAYOUTS = ("two", "difference")
PANELS = ("", "compare", "switches", "probes", "save", "model", "guide")
GUIDE_STEPS = 6
MAX_VIEWS, MAX_PINS, MAX_OFF = 2, 6, 4096
MAX_STEP, MAX_RESOLUTION, MAX_FRAME = 10**12 - 1, 99_999, 10**6 - 1
NATIVE = "native"
"""The resolution that stands for the picture's own."""
TOKEN_METHOD = "attention"
FIRST_PROBE = next(iter(PROBES))
HUB_MODEL = re.compile(r"hf:\w[\w.-]{0,95}/\w[\w.-]{0,95}(@[\w./-]{1,96})?", re.ASCII)
OWN_MODEL = re.compile(r"own:[\w-]{22}", re.ASCII)

ANYTHING = Bounds()


@dataclass(frozen=True)
class View:
    """One canvas: a model, a picture, and a map of what the one makes of the other.

    Args:
        model: a name of the menu, ``hf:OWNER/NAME``, ``own:TOKEN`` for a visitor's own checkpoint, or empty for the
            model with which the app starts.
        step: of the training, of a model with snapshots; None for the last.
        picture: ``example:NAME`` or ``picture:ID``.
        fit: a name in :data:`vitviz.images.preprocessing.FITS`; None for the model's own.
        resolution: the shorter side in pixels, :data:`NATIVE`, or None for what the model was trained with.
        method: a name in :data:`vitviz.METHODS`.
        parameters: of the method, by name, as JSON; those that are left out have their defaults.
        pins: tokens whose maps stand below the canvas.
        heads_off: layers and heads that are switched off.
        patches_off: rows and columns of patches that are switched off.
        probe: by which the page looks into the model, a name in :data:`vitviz.evaluation.probes.PROBES`.
        probe_parameters: of the probe, as those of the method.
        frame: of a clip, counted from 0; None of a picture.

    Raises:
        MethodError: one of them is not legal for any model.
    """

    model: str = ""
    step: int | None = None
    picture: str = f"example:{EXAMPLES[0]}"
    fit: str | None = None
    resolution: int | str | None = None
    method: str = TOKEN_METHOD
    parameters: Mapping[str, Any] = field(default_factory=dict)
    pins: tuple[Query, ...] = ()
    heads_off: tuple[tuple[int, int], ...] = ()
    patches_off: tuple[tuple[int, int], ...] = ()
    probe: str = FIRST_PROBE
    probe_parameters: Mapping[str, Any] = field(default_factory=dict)
    frame: int | None = None

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
        if self.fit is not None:
            word("fit", self.fit, FITS)
        if self.resolution not in (None, NATIVE):
            number("resolution", self.resolution, 1, MAX_RESOLUTION, whole=True)
        word("method", self.method, METHODS)
        checked = _checked("parameters", METHODS[self.method].parameters, self.parameters)
        object.__setattr__(self, "parameters", checked)
        word("probe", self.probe, PROBES)
        checked = _checked("probe_parameters", PROBES[self.probe].parameters, self.probe_parameters)
        object.__setattr__(self, "probe_parameters", checked)
        object.__setattr__(self, "pins", _unique("pins", self.pins, MAX_PINS, _token))
        for name in ("heads_off", "patches_off"):
            object.__setattr__(self, name, tuple(sorted(_unique(name, getattr(self, name), MAX_OFF, _pair))))


@dataclass(frozen=True)
class PageState:
    """All that a page shows.

    Args:
        views: one or two.
        layout: a name in :data:`LAYOUTS`.
        divider: where the picture begins beside the map in the layout ``slide``, in [0, 1].
        colormap: a name in :data:`vitviz.COLORMAPS`.
        opacity: of the colours over the picture, in [0, 1].
        fade: whether weak values leave the picture clear.
        smooth: whether colours change between the centres of patches.
        grid: whether the borders of the patches are drawn.
        outliers: whether patches of outlying norm are marked.
        scale: from values to colours, a name in :data:`vitviz.visualization.SCALES`; None for the one that the values
            of each map ask for.
        percentiles: between which a robust scale lies.
        shared_scale: whether all cells of the sheet have one scale.
        panel: which panel is open, a name in :data:`PANELS`.
        guide: step of the tour that is shown.

    Raises:
        MethodError: one of them is not legal.
    """

    views: tuple[View, ...] = field(default_factory=lambda: (FIRST_VIEW,))
    layout: str = "one"
    divider: float = 0.5
    colormap: str = "inferno"
    opacity: float = 0.7
    fade: bool = True
    smooth: bool = False
    grid: bool = False
    outliers: bool = False
    scale: str | None = None
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
        """The state that a JSON object says; what it leaves out has its default.

        Raises:
            MethodError: it is not legal.
        """
        given = dict(object_fields("state", value, [part.name for part in fields(cls)]))
        if "views" in given:
            views = given["views"]
            if not isinstance(views, list) or not 1 <= len(views) <= MAX_VIEWS:
                raise MethodError(f"views = {quote(views)}: expected a list of 1 or {MAX_VIEWS} views")
            names = [part.name for part in fields(View)]
            given["views"] = tuple(View(**object_fields(f"views[{at}]", each, names)) for at, each in enumerate(views))
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        """The state as :meth:`from_json` reads it."""
        return plain_json({part.name: getattr(self, part.name) for part in fields(self)})

    @property
    def style(self) -> Style:
        """How its maps are drawn."""
        look = {name: getattr(self, name) for name in ("colormap", "opacity", "smooth", "grid", "fade", "scale")}
        return Style(**look, percentiles=self.percentiles)

    def with_view(self, index: int, view: View) -> PageState:
        """The same with another view in a place."""
        return replace(self, views=tuple(view if at == index else each for at, each in enumerate(self.views)))


def plain_json(value: Any) -> Any:
    """A state, or a part of one, as JSON."""
    if isinstance(value, View):
        return {part.name: plain_json(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain_json(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain_json(each) for each in value]
    return value


def is_model(value: object) -> bool:
    """Whether this may stand for a model."""
    if not isinstance(value, str):
        return False
    named = value == "" or value in BUNDLED or value in ZOO
    return named or HUB_MODEL.fullmatch(value) is not None or OWN_MODEL.fullmatch(value) is not None


def _checked(field: str, parameters: Sequence[Parameter], value: object) -> dict[str, Any]:
    """Parameters of a method or a probe, as far as they can be checked without a model; without those that are null."""
    legal = values_of(parameters, dict(value) if isinstance(value, Mapping) else value, ANYTHING, field)
    targets = [part.name for part in parameters if isinstance(part, ClassTarget)]
    return {name: target_json(each) if name in targets else each for name, each in legal.items()}


def _token(name: str, value: object) -> Query:
    return token_of(name, value, None)


def _pair(name: str, value: object) -> tuple[int, int]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise MethodError(f"{name} = {quote(value)}: expected a list of two whole numbers")
    first, second = (int(number(name, each, 0, MAX_INDEX - 1, whole=True)) for each in value)
    return first, second


def _unique(name: str, value: object, most: int, read: Callable[[str, object], Any]) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or len(value) > most:
        found = f"{len(value):,} entries" if isinstance(value, list | tuple) else quote(value)
        raise MethodError(f"{name} = {found}: expected a list of at most {most:,}")
    return tuple(dict.fromkeys(read(name, each) for each in value))


# With it the page opens.
FIRST_VIEW: View = View(method="rollout")

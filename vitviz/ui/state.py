"""The state of a page as one value, from which its link, its JSON and its lines of Python are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from vitviz.attention.layout import Query
from vitviz.attribution import METHODS
from vitviz.attribution.json_values import fields as object_fields
from vitviz.attribution.methods import MethodName
from vitviz.attribution.parameters import Token
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import quote
from vitviz.evaluation.probes import PROBES
from vitviz.images.colours import COLOR_PROFILES, ColorProfile
from vitviz.images.preprocessing import FITS, Fit
from vitviz.ui.arguments import values_of
from vitviz.ui.fields import (
    ANYTHING,
    MAX_RESOLUTION,
    Between,
    ModelName,
    OneOf,
    Percentiles,
    PictureName,
    Place,
    Resolution,
    Several,
    Switch,
    check_fields,
    of_kind,
)
from vitviz.ui.pictures import EXAMPLES
from vitviz.visualization.colormaps import COLORMAPS, ColormapName
from vitviz.visualization.heatmaps import Style
from vitviz.visualization.scales import PERCENTILES, SCALES, ScaleName

LAYOUTS = ("one", "slide", "two", "difference")
PAIRED_LAYOUTS = ("two", "difference")
PANELS = ("", "compare", "switches", "probes", "save", "model", "guide")
GUIDE_STEPS = 6
MAX_VIEWS, MAX_PINS, MAX_OFF = 2, 6, 4096
TOKEN_METHOD: MethodName = "attention"
FIRST_PROBE = next(iter(PROBES))
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
        resolution: the shorter side in pixels, :data:`vitviz.ui.fields.NATIVE`, or None for the trained one.
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

    model: str = of_kind(ModelName(), "")
    step: int | None = of_kind(Between(0, 10**12 - 1), None, none="last")
    picture: str = of_kind(PictureName(), f"example:{EXAMPLES[0]}")
    fit: Fit | None = of_kind(OneOf(FITS), None, none="own")
    resolution: int | str | None = of_kind(Resolution(1, MAX_RESOLUTION), None, none="trained")
    method: MethodName = of_kind(OneOf(METHODS), TOKEN_METHOD)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    pins: tuple[Query, ...] = of_kind(Several(Token(), MAX_PINS), ())
    heads_off: tuple[tuple[int, int], ...] = of_kind(Several(Place(), MAX_OFF, is_sorted=True), (), key="heads-off")
    patches_off: tuple[tuple[int, int], ...] = of_kind(Several(Place(), MAX_OFF, is_sorted=True), (), key="patches-off")
    probe: str = of_kind(OneOf(PROBES), FIRST_PROBE)
    probe_parameters: Mapping[str, Any] = field(default_factory=dict)
    frame: int | None = of_kind(Between(0, 10**6 - 1), None, none="none")
    white: int | None = of_kind(Between(1, 2**31 - 1), None, none="format")
    color_profile: ColorProfile | None = of_kind(OneOf(COLOR_PROFILES), None, none="own")

    def __post_init__(self) -> None:
        check_fields(self)
        for name, record in (("parameters", METHODS[self.method]), ("probe_parameters", PROBES[self.probe])):
            value = getattr(self, name)
            given = dict(value) if isinstance(value, Mapping) else value
            object.__setattr__(self, name, values_of(record.parameters, given, ANYTHING, name, as_state=True))

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
    layout: str = of_kind(OneOf(LAYOUTS), "one")
    divider: float = of_kind(Between(0, 1, whole=False), 0.5)
    colormap: ColormapName = of_kind(OneOf(COLORMAPS), "inferno")
    opacity: float = of_kind(Between(0, 1, whole=False), 0.7)
    fade: bool = of_kind(Switch(), True)
    smooth: bool = of_kind(Switch(), False)
    grid: bool = of_kind(Switch(), False)
    outliers: bool = of_kind(Switch(), False)
    scale: ScaleName | None = of_kind(OneOf(SCALES), None, none="automatic")
    percentiles: tuple[float, float] = of_kind(Percentiles(), PERCENTILES)
    shared_scale: bool = of_kind(Switch(), False, key="shared")
    panel: str = of_kind(OneOf(PANELS), "")
    guide: int = of_kind(Between(0, GUIDE_STEPS - 1), 0)

    def __post_init__(self) -> None:
        if not 1 <= len(self.views) <= MAX_VIEWS:
            raise MethodError(f"views = {len(self.views)} views: expected 1 or {MAX_VIEWS}")
        check_fields(self)

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


# The view with which the page opens.
FIRST_VIEW: View = View(method="rollout")

"""Arguments of maps by JSON from programs and pages, for one model and one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitviz.attention.layout import TokenLayout
from vitviz.attribution import METHODS, Method
from vitviz.attribution.json_values import fields, number, word
from vitviz.attribution.parameters import Parameter
from vitviz.attribution.requests import Bounds
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import quote
from vitviz.ui.pictures import PICTURE, Upload, is_picture, upload_of
from vitviz.visualization.scales import SCALES, ScaleName
from vitviz.weights import Model
from vitviz.weights.text_tower import reads_text


def view_index(request: Mapping[str, Any], count: int) -> int:
    """The field ``index`` of a request, of one of ``count`` views.

    Raises:
        MethodError: it is no index of a view.
    """
    return int(number("index", request.get("index"), 0, count - 1, whole=True))


def scale_of(field: str, value: object) -> ScaleName | None:
    """The name of a scale; None lets the values of the map choose one.

    Raises:
        MethodError: there is no scale of this name.
    """
    return None if value is None else word(field, value, SCALES)


def method_of(value: object, field: str = "method") -> Method:
    """The method of a name.

    Raises:
        MethodError: there is no method of this name.
    """
    return METHODS[word(field, value, METHODS)]


def bounds_of(model: Model, layout: TokenLayout) -> Bounds:
    """What a model and a picture have."""
    config = model.network.config
    return Bounds(
        config.depth,
        config.heads,
        config.classes,
        layout,
        # A model that pools by attention starts from a learned query, which is no token.
        None if pools_by_attention(model) else layout.default_query,
        model.labels,
        reads_text(model),
        model.name,
        _other_picture,
    )


def pools_by_attention(model: Model) -> bool:
    """Whether a learned query reads the model's output."""
    return model.network.config.pooling == "attention"


def _other_picture(field: str, value: object) -> str | Upload:
    """The other picture that a target names: ``example:NAME``, ``picture:ID``, or an upload."""
    if isinstance(value, dict):
        return upload_of(value, field)
    return kept_picture(field, value, ", or a file that was uploaded here")


def kept_picture(field: str, value: object, also: str = "") -> str:
    """The other picture that a state names, which may be no upload, for which it has an id.

    Raises:
        MethodError: it is no such name; ``also`` says what else is expected.
    """
    if not isinstance(value, str) or not is_picture(value):
        raise MethodError(f"{field} = {quote(value)}: {PICTURE}{also}")
    return value


def parameters_of(
    method: Method, parameters: object, model: Model, layout: TokenLayout, field: str = "parameters"
) -> dict[str, Any]:
    """All arguments of a method; a missing or null one gets its default.

    Args:
        method: to which they belong.
        parameters: an object with a field for each, or null.
        model, layout: of the analysis.
        field: the name of the object in messages.

    Raises:
        MethodError: a parameter is unknown or not legal, or the model cannot serve the method.
    """
    # A missing target is refused where it is looked up.
    refusal = method.refusal(model.network.config, has_target=True)
    if refusal is not None:
        raise MethodError(f"{method.name}: {refusal}")
    defaults = {parameter.name: parameter.default for parameter in method.parameters}
    return defaults | values_of(method.parameters, parameters, bounds_of(model, layout), field)


def values_of(
    parameters: Sequence[Parameter], value: object, bounds: Bounds, field: str = "parameters", *, as_state: bool = False
) -> dict[str, Any]:
    """The parameters in an object that are not null.

    Args:
        parameters: of a method or a probe.
        value: an object with a field for each, or null.
        bounds: of the model and the picture.
        field: the name of the object in messages.
        as_state: as a state keeps them, not as arguments of the library.

    Raises:
        MethodError: a parameter is unknown or not legal.
    """
    values = {} if value is None else fields(field, value, [parameter.name for parameter in parameters])
    return {
        parameter.name: (parameter.kept if as_state else parameter.read)(
            values[parameter.name], bounds, f"{field}.{parameter.name}"
        )
        for parameter in parameters
        if values.get(parameter.name) is not None
    }

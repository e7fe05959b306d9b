"""Controls made from the parameters of a method."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from vitviz.attention.layout import PATCHES, Query, TokenLayout
from vitviz.attention.softmax import HEAD_FUSIONS
from vitviz.attribution.methods import Choice, ClassTarget, HeadNumber, LayerNumber, Number, Parameter, TokenQuery
from vitviz.attribution.pooling import POOLED
from vitviz.errors.kinds import QueryError
from vitviz.weights import Model

MOST_PROBABLE = "most probable"
# The entry of the token menu that is no token, but the learned query of attention pooling.
POOLING_QUERY = "pooling query"
# So many patches are listed in the token menu: a page copies what a menu lists with every event. Others are written.
MOST_LISTED = 2048
PATCH = re.compile(r"\s*(?:patch)?\s*\(?\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\)?\s*", re.ASCII | re.IGNORECASE)


def _of_the_model(control: Any, preprocess: Callable[[Any], Any], payload: Any) -> Any:
    """What a control says whose choices belong to the model.

    When another model is chosen, a page may still send what the control said of the one before: then the control's own
    value counts, which the page is about to show. An emptied one says nothing.
    """
    try:
        return None if payload is None else preprocess(payload)
    except gr.Error:
        return control.value


class NumberSlider(gr.Slider):
    """A number; None where its box was emptied, of which Gradio's own makes an error."""

    # Drawn by the browser code of the class it is made from.
    is_template = True

    def preprocess(self, payload: Any) -> Any:
        return None if payload is None else super().preprocess(payload)


class LayerSlider(gr.Slider):
    """A layer of the model."""

    is_template = True

    def preprocess(self, payload: Any) -> Any:
        return _of_the_model(self, super().preprocess, payload)


class MethodRadio(gr.Radio):
    """A map that the model can have."""

    is_template = True

    def preprocess(self, payload: Any) -> Any:
        return _of_the_model(self, super().preprocess, payload)


class HeadRadio(gr.Radio):
    """A head of the model, or a fusion of all."""

    is_template = True

    def preprocess(self, payload: Any) -> Any:
        return _of_the_model(self, super().preprocess, payload)


class ClassMenu(gr.Dropdown):
    """A class of the model."""

    is_template = True

    def preprocess(self, payload: Any) -> Any:
        return _of_the_model(self, super().preprocess, payload)


class TokenMenu(gr.Dropdown):
    """A token of the model."""

    is_template = True

    def preprocess(self, payload: Any) -> Any:
        return _of_the_model(self, super().preprocess, payload)


def control(parameter: Parameter, model: Model) -> gr.components.Component:
    """The control of one parameter, for a model."""
    shared = {"label": parameter.title, **_options(parameter, model)}
    match parameter:
        case Choice():
            return gr.Radio(info=parameter.help, **shared)
        case HeadNumber():
            return HeadRadio(info=parameter.help, **shared)
        case Number():
            return NumberSlider(info=parameter.help, buttons=[], **shared)
        case LayerNumber():
            return LayerSlider(info=parameter.help, buttons=[], **shared)
        case TokenQuery():
            return TokenMenu(**shared)
        case ClassTarget():
            return ClassMenu(info="click a prediction, or choose", **shared)


def control_update(parameter: Parameter, model: Model) -> dict[str, Any]:
    """What changes in the control of a parameter when a model is chosen; it starts anew."""
    return gr.update(**_options(parameter, model))


def _options(parameter: Parameter, model: Model) -> dict[str, Any]:
    """What a control offers, and what it shows first."""
    return {**_offered(parameter, model), "value": first_shown(parameter, model)}


def _offered(parameter: Parameter, model: Model) -> dict[str, Any]:
    config = model.network.config
    match parameter:
        case Choice():
            return {"choices": [(title, title) for title, _ in parameter.options]}
        case Number():
            return {"minimum": parameter.minimum, "maximum": parameter.maximum, "step": parameter.step}
        case LayerNumber():
            return {"minimum": 0, "maximum": config.depth - 1, "step": 1}
        case HeadNumber():
            return {"choices": head_choices(model)}
        case TokenQuery():
            return token_menu(model, _trained(model))
        case ClassTarget():
            return {"choices": class_choices(model.labels)}


def first_shown(parameter: Parameter, model: Model) -> Any:
    """What a control shows first."""
    match parameter:
        case LayerNumber():
            return shown(parameter, parameter.default % model.network.config.depth)
        case TokenQuery():
            return shown(parameter, first_query(model, _trained(model)))
        case _:
            return shown(parameter, parameter.default)


def starting_value(parameter: Parameter, model: Model) -> Any:
    """What a control shows first, as the argument of the method."""
    return value(parameter, first_shown(parameter, model))


def shown(parameter: Parameter, argument: Any) -> Any:
    """An argument of the method as its control shows it; the inverse of :func:`value`."""
    match parameter:
        case Choice():
            return next(title for title, option in parameter.options if option == argument)
        case LayerNumber():
            return argument
        case HeadNumber():
            return argument if argument in HEAD_FUSIONS else str(argument)
        case TokenQuery():
            return token_value(argument)
        case ClassTarget():
            return MOST_PROBABLE if argument is None else str(argument)
        case Number():
            return argument


def value(parameter: Parameter, shown: Any) -> Any:
    """What a control shows, as the argument of the method."""
    match parameter:
        case Choice():
            return dict(parameter.options)[shown]
        case LayerNumber():
            return int(shown)
        case HeadNumber():
            return shown if shown in HEAD_FUSIONS else int(shown)
        case TokenQuery():
            return token_query(shown)
        case ClassTarget():
            return None if shown == MOST_PROBABLE else int(shown)
        case Number():
            return int(shown) if parameter.whole else float(shown)


def head_choices(model: Model) -> list[str]:
    """What the menu of heads offers: the fusions of all, then every head, counted from 0."""
    return [*HEAD_FUSIONS, *(str(head) for head in range(model.network.config.heads))]


def class_choices(labels: Sequence[str]) -> list[tuple[str, str]]:
    """What the class menu offers: the most probable class, then every class by name."""
    named = [(told_apart(labels, index), str(index)) for index in range(len(labels))]
    return [("the most probable", MOST_PROBABLE), *named]


def told_apart(labels: Sequence[str], index: int) -> str:
    """A class's label; with its number where another class has the same."""
    return f"{labels[index]} ({index})" if labels.count(labels[index]) > 1 else labels[index]


def token_menu(model: Model, layout: TokenLayout) -> dict[str, Any]:
    """What the token menu offers, whether more can be written, and what it says of that."""
    choose, write = "click a patch in the picture, or choose", "click a patch in the picture, or write its place: 3, 5"
    listed = _lists_patches(layout)
    return {
        "choices": token_choices(model, layout),
        "allow_custom_value": not listed,
        "info": choose if listed else write,
    }


def _lists_patches(layout: TokenLayout) -> bool:
    return layout.patch_count <= MOST_LISTED


def token_choices(model: Model, layout: TokenLayout) -> list[tuple[str, str]]:
    """What the token menu lists: prefix tokens, the mean patch, then every patch where they are not too many.

    Before them stands the query of attention pooling where the model has one; maps that cannot start from it say in
    their caption which token they start from instead.
    """
    listed = range(layout.grid_height if _lists_patches(layout) else 0)
    patches = [(row, column) for row in listed for column in range(layout.grid_width)]
    queries: list[Query] = [*layout.prefix, PATCHES, *patches]
    pooled = [(_capital(POOLED), POOLING_QUERY)] if _pools_by_attention(model) else []
    return [*pooled, *((_capital(layout.name(query).removeprefix("the ")), token_value(query)) for query in queries)]


def first_query(model: Model, layout: TokenLayout) -> Query | None:
    """What the token menu shows first: what the model itself reads, None for the query of attention pooling."""
    return None if _pools_by_attention(model) else layout.default_query


def has_query(model: Model, layout: TokenLayout, query: Query | None) -> bool:
    """Whether the token menu offers this for a model and the layout of an image."""
    if query is None:
        return _pools_by_attention(model)
    try:
        layout.select(query)
    except QueryError:
        return False
    return True


def token_value(query: Query | None) -> str:
    """A query as the token menu's value; the inverse of :func:`token_query`."""
    if query is None:
        return POOLING_QUERY
    return f"{query[0]},{query[1]}" if isinstance(query, tuple) else str(query)


def token_query(shown: str) -> Query | None:
    """The query that a value of the token menu stands for; None for that of attention pooling."""
    if shown == POOLING_QUERY:
        return None
    patch = PATCH.fullmatch(shown)
    return (int(patch[1]), int(patch[2])) if patch else shown


def _trained(model: Model) -> TokenLayout:
    config = model.network.config
    return config.layout(config.image_height, config.image_width)


def _pools_by_attention(model: Model) -> bool:
    return model.network.config.pooling == "attention"


def _capital(name: str) -> str:
    return name[0].upper() + name[1:]

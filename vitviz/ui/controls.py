"""Controls made from the parameters of a method."""

from __future__ import annotations

from typing import Any

import gradio as gr

from vitviz.attribution.methods import Choice, HeadNumber, LayerNumber, Number, Parameter, TokenQuery
from vitviz.config import ViTConfig
from vitviz.layout import PATCHES, Query, TokenLayout
from vitviz.trace import HEAD_FUSIONS


def control(parameter: Parameter, config: ViTConfig) -> gr.components.Component:
    """The control of one parameter, for a model of this configuration."""
    match parameter:
        case Choice():
            options = [(title, title) for title, _ in parameter.options]
            shown = next(title for title, value in parameter.options if value == parameter.default)
            return gr.Radio(options, value=shown, label=parameter.title, info=parameter.help)
        case Number():
            return gr.Slider(
                parameter.minimum,
                parameter.maximum,
                value=parameter.default,
                step=parameter.step,
                label=parameter.title,
                info=parameter.help,
                buttons=[],
            )
        case LayerNumber():
            layer = parameter.default % config.depth + 1
            return gr.Slider(
                1, config.depth, value=layer, step=1, label=parameter.title, info=parameter.help, buttons=[]
            )
        case HeadNumber():
            heads = [*HEAD_FUSIONS, *(str(head + 1) for head in range(config.heads))]
            return gr.Radio(heads, value=parameter.default, label=parameter.title, info=parameter.help)
        case TokenQuery():
            trained = config.layout(config.image_height, config.image_width)
            return gr.Dropdown(
                token_choices(trained),
                value=token_value(trained.reader),
                label=parameter.title,
                info="click a patch in the picture, or choose",
            )


def value(parameter: Parameter, shown: Any) -> Any:
    """What a control shows, as the argument of the method."""
    match parameter:
        case Choice():
            return dict(parameter.options)[shown]
        case LayerNumber():
            return int(shown) - 1
        case HeadNumber():
            return shown if shown in HEAD_FUSIONS else int(shown) - 1
        case TokenQuery():
            return token_query(shown)
        case Number():
            return float(shown)


def token_choices(layout: TokenLayout) -> list[tuple[str, str]]:
    """What the token menu offers: prefix tokens, the mean patch, then every patch."""
    patches = [(row, column) for row in range(layout.grid_height) for column in range(layout.grid_width)]
    queries: list[Query] = [*layout.prefix, PATCHES, *patches]
    return [(_title(layout, query), token_value(query)) for query in queries]


def token_value(query: Query) -> str:
    """A query as the token menu's value; the inverse of :func:`token_query`."""
    return f"{query[0]},{query[1]}" if isinstance(query, tuple) else str(query)


def token_query(shown: str) -> Query:
    """The query that a value of the token menu stands for."""
    row, comma, column = shown.partition(",")
    return (int(row), int(column)) if comma else shown


def _title(layout: TokenLayout, query: Query) -> str:
    name = layout.name(query).removeprefix("the ")
    return name[0].upper() + name[1:]

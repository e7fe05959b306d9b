"""The read-out beside the picture: which map, its parameters, and how it is drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from vitviz.attention.layout import Query, TokenLayout
from vitviz.attribution import METHODS, Method
from vitviz.attribution.methods import ClassTarget, HeadNumber, LayerNumber, Parameter, TokenQuery
from vitviz.errors.kinds import QueryError
from vitviz.ui.controls import (
    MethodRadio,
    NumberSlider,
    control,
    control_update,
    first_query,
    has_query,
    shown,
    starting_value,
    token_menu,
    token_value,
    value,
)
from vitviz.ui.sight import Sight, SightPicker
from vitviz.ui.texts import markdown, plain
from vitviz.visualization.heatmaps import COLORMAPS, Style
from vitviz.weights import Model, describe
from vitviz.weights.text_tower import MAX_TEXT_CHARS, TextPrompt, reads_text

# Of more classes, the page names the first few.
MOST_LABELS = 20
# The map with which the page opens, and its look.
PLAIN_METHOD = "attention"
PLAIN_STYLE = Style(grid=True)


@dataclass(frozen=True)
class Settings:
    """What the controls say.

    Args:
        method: name of the map that is shown.
        parameters: arguments of every method, by its name.
        sight: how the picture is brought to the model's input.
        style: how maps are drawn.
        shared_scale: whether the cells of the sheet share one range of values.
    """

    method: str
    parameters: dict[str, dict[str, Any]]
    sight: Sight
    style: Style
    shared_scale: bool

    @property
    def target(self) -> Any:
        """What all maps that are about a class are about: they share one control."""
        return next(said["target"] for said in self.parameters.values() if "target" in said)

    @property
    def drawn(self) -> tuple[Any, ...]:
        """All that the picture depends on."""
        return self.method, self.parameters[self.method], self.style

    @property
    def tiled(self) -> tuple[Any, ...]:
        """All that the sheet depends on."""
        return self.parameters[PLAIN_METHOD], replace(self.style, grid=False), self.shared_scale


def default_settings(model: Model) -> Settings:
    """The settings with which the page opens: those of the methods, the checkpoint and the style."""
    parameters = {
        name: {part.name: starting_value(part, model) for part in method.parameters} for name, method in METHODS.items()
    }
    return Settings(PLAIN_METHOD, parameters, Sight(model.preprocessing.fit), PLAIN_STYLE, False)


class ControlPanel:
    """The controls, made for the model of the start; :meth:`read` reads them in the order of ``components``."""

    def __init__(self, model: Model, sight: SightPicker) -> None:
        self.sight = sight
        self.method = MethodRadio(method_choices(model), value="attention", label="Map", elem_id="vv-method")
        said = refusals(model)
        self.refused = markdown(said, visible=bool(said), elem_classes="vv-aside", elem_id="vv-refused")
        self.token = control(_shared(TokenQuery), model)
        self.token.elem_id = "vv-token"
        with gr.Column(visible=False, elem_id="vv-about-class") as self.about_class:
            self.target = control(_shared(ClassTarget), model)
            self.target.elem_id, self.target.visible = "vv-target", bool(model.labels)
            self.words = gr.Textbox(
                "",
                label="In words",
                placeholder="a photo of a cat, and Enter",
                visible=reads_text(model),
                max_length=MAX_TEXT_CHARS,
                elem_id="vv-words",
            )
        self.controls: dict[tuple[str, str], Any] = {}
        self.groups: dict[str, gr.Column] = {}
        for name, method in METHODS.items():
            shown = name == "attention"
            with gr.Column(visible=shown, elem_id=f"vv-{name}") as self.groups[name]:
                for parameter in method.parameters:
                    if isinstance(parameter, TokenQuery):
                        self.controls[name, parameter.name] = self.token
                    elif isinstance(parameter, ClassTarget):
                        self.controls[name, parameter.name] = self.target
                    else:
                        made = control(parameter, model)
                        made.elem_id = f"vv-{name}-{parameter.name}"
                        self.controls[name, parameter.name] = made
        with gr.Accordion("Look", open=False):
            self.colormap = gr.Dropdown(list(COLORMAPS), value=Style.colormap, label="Colours", elem_id="vv-colormap")
            self.opacity = NumberSlider(
                0, 1, Style.opacity, step=0.05, label="Opacity", buttons=[], elem_id="vv-opacity"
            )
            self.smooth = gr.Checkbox(False, label="Smooth between patches", elem_id="vv-smooth")
            self.grid = gr.Checkbox(True, label="Patch grid", elem_id="vv-grid")
        self.shared_scale = gr.Checkbox(
            False, label="One colour scale for all cells", elem_id="vv-shared-scale", render=False
        )
        groups = [*self.groups.values(), self.about_class]
        self.method.change(None, self.method, groups, js=_show_group(), api_visibility="private")

    @property
    def layer(self) -> Any:
        """The layer of the token attention."""
        return self.controls["attention", "layer"]

    @property
    def head(self) -> Any:
        """The head of the token attention."""
        return self.controls["attention", "head"]

    @property
    def components(self) -> list[Any]:
        """Everything that :meth:`read` reads."""
        parameters = [part for part in self.controls.values() if part not in (self.token, self.target)]
        look = [self.colormap, self.opacity, self.smooth, self.grid, self.shared_scale]
        return [*self.sight.components, self.method, self.token, self.target, self.words, *parameters, *look]

    @property
    def drawing(self) -> list[Any]:
        """What changes the picture as soon as it changes; words do when they are sent."""
        return [part for part in self.components if part not in (*self.sight.components, self.shared_scale, self.words)]

    def read(self, values: Sequence[Any]) -> Settings:
        """The settings that these values of ``components`` stand for.

        Raises:
            QueryError: a control was emptied.
        """
        empty = [part.label for part, shown in zip(self.components, values, strict=True) if shown is None]
        if empty:
            raise QueryError(f"{', '.join(empty)}: nothing is chosen; expected a value")
        said = dict(zip(map(id, self.components), values, strict=True))
        parameters = {
            name: {
                parameter.name: value(parameter, said[id(self.controls[name, parameter.name])])
                for parameter in method.parameters
            }
            for name, method in METHODS.items()
        }
        words = said[id(self.words)].strip()
        for each in parameters.values():
            if words and "target" in each:
                each["target"] = TextPrompt(words)
        style = Style(
            colormap=said[id(self.colormap)],
            opacity=said[id(self.opacity)],
            smooth=said[id(self.smooth)],
            grid=said[id(self.grid)],
        )
        sight = self.sight_of(values)
        return Settings(said[id(self.method)], parameters, sight, style, said[id(self.shared_scale)])

    @property
    def of_the_model(self) -> list[Any]:
        """What offers other choices for another model, the token menu aside."""
        shared = [*self.sight.components, self.method, self.refused, self.target, self.words]
        return [*shared, *(self.controls[key] for key in self._of_the_model())]

    def for_model(self, model: Model, settings: Settings) -> tuple[list[dict[str, Any]], Settings]:
        """Updates of ``of_the_model`` for another model, and the settings as far as they mean the same there."""
        method = settings.method if refusal(METHODS[settings.method], model) is None else "attention"
        sights, sight = self.sight.for_model(model)
        updates = [
            *sights,
            gr.update(choices=method_choices(model), value=method),
            gr.update(value=refusals(model), visible=bool(refusals(model))),
            control_update(_shared(ClassTarget), model) | {"visible": bool(model.labels)},
            gr.update(value="", visible=reads_text(model)),
            *(control_update(parameter, model) for parameter in self._of_the_model().values()),
        ]
        parameters = {
            name: {
                part.name: starting_value(part, model)
                if _is_of_the_model(part)
                else settings.parameters[name][part.name]
                for part in each.parameters
            }
            for name, each in METHODS.items()
        }
        return updates, replace(settings, method=method, parameters=parameters, sight=sight)

    def _of_the_model(self) -> dict[tuple[str, str], Parameter]:
        return {
            (name, parameter.name): parameter
            for name, method in METHODS.items()
            for parameter in method.parameters
            if _is_of_the_model(parameter) and not isinstance(parameter, TokenQuery | ClassTarget)
        }

    def sight_of(self, values: Sequence[Any]) -> Sight:
        """How the picture is brought to the model's input, by these values of ``components``."""
        return self.sight.read(*(values[self.components.index(part)] for part in self.sight.components))

    def token_menu(self, model: Model, layout: TokenLayout, settings: Settings) -> tuple[dict[str, Any], Settings]:
        """The token menu for a model and an image's layout, and the settings with a token that these have."""
        query = settings.parameters["attention"]["query"]
        if not has_query(model, layout, query):
            query = first_query(model, layout)
            parameters = {
                name: {**said, "query": query} if "query" in said else said
                for name, said in settings.parameters.items()
            }
            settings = replace(settings, parameters=parameters)
        return gr.update(**token_menu(model, layout), value=token_value(query)), settings

    def token_value(self, query: Query) -> str:
        """A query as the token menu's value."""
        return token_value(query)

    @property
    def restored(self) -> list[Any]:
        """What :meth:`showing` changes."""
        own = [part for part in self.controls.values() if part not in (self.token, self.target)]
        look = [self.colormap, self.opacity, self.smooth, self.grid]
        return [self.token, self.method, self.target, self.words, *own, *look]

    def showing(self, model: Model, layout: TokenLayout, settings: Settings) -> list[dict[str, Any]]:
        """Updates of ``restored``, so that the controls say these settings of a model and an image's layout."""
        menu, settings = self.token_menu(model, layout, settings)
        target = settings.target
        own = [
            shown(parameter, settings.parameters[name][parameter.name])
            for name, method in METHODS.items()
            for parameter in method.parameters
            if not isinstance(parameter, TokenQuery | ClassTarget)
        ]
        words = target.text if isinstance(target, TextPrompt) else ""
        about = shown(_shared(ClassTarget), None if words else target)
        look = [settings.style.colormap, settings.style.opacity, settings.style.smooth, settings.style.grid]
        values = [settings.method, about, words, *own, *look]
        return [menu, *(gr.update(value=said) for said in values)]


def method_choices(model: Model) -> list[tuple[str, str]]:
    """What the menu of maps offers for a model."""
    return [(method.title, name) for name, method in METHODS.items() if refusal(method, model) is None]


def refusal(method: Method, model: Model) -> str | None:
    """Why a map is not offered for a model; None where it is, be it about a text."""
    return method.refusal(model.network.config, has_target=method.class_specific and reads_text(model))


def refusals(model: Model) -> str:
    """Which maps a model cannot have, and why, in Markdown; empty where it can have all."""
    titles: dict[str, list[str]] = {}
    for method in METHODS.values():
        reason = refusal(method, model)
        if reason is not None:
            titles.setdefault(reason, []).append(method.title)
    return "\n\n".join(f"Not here: {plain(', '.join(names))}: {plain(reason)}." for reason, names in titles.items())


def model_card(model: Model) -> str:
    """What the page says about a model, in Markdown."""
    facts = {check.fact: check.value for check in describe(model.network.config)}
    facts |= {"parameters": f"{model.parameters:,}", **model.card}
    lines = "\n".join(f"- {plain(name)}: {plain(fact)}" for name, fact in facts.items())
    return f"**{plain(model.name)}**\n\n{lines}"


def model_aside(model: Model) -> str:
    """What a reader of its predictions has to know, in Markdown."""
    return "\n\n".join(line for line in (_classes(model), _assumptions(model)) if line)


def _classes(model: Model) -> str:
    count = len(model.labels)
    if not count:
        return "This model has no classifier: it gives features, not predictions."
    if count > MOST_LABELS:
        return f"This model knows {count:,} classes: {plain(', '.join(_first(model.labels)))}, … and no others."
    return f"This model knows only: {plain(', '.join(model.labels))}."


def _assumptions(model: Model) -> str:
    """What its checkpoint does not say and vitviz took from published ones; empty where there is nothing."""
    if not model.assumptions:
        return ""
    assumed = plain("; ".join(model.assumptions))
    return f"Assumed, since its file does not say it: {assumed}. “About this model” says how to change it."


def _first(labels: tuple[str, ...]) -> list[str]:
    """The first few classes, of names with synonyms the first."""
    return [label.partition(",")[0] for label in labels[:6]]


def _is_of_the_model(parameter: Parameter) -> bool:
    return isinstance(parameter, LayerNumber | HeadNumber | TokenQuery | ClassTarget)


def _shared(kind: type[Parameter]) -> Parameter:
    """The parameter that has one control for all methods."""
    return next(part for method in METHODS.values() for part in method.parameters if isinstance(part, kind))


def _show_group() -> str:
    """Shows the controls of the chosen map, and those of its class; in the page.

    Whatever holds other components is changed in the page alone: with every event of the server that may change it,
    Gradio copies the state of all that is in it, and with every later event once more.
    """
    about = {name: method.class_specific for name, method in METHODS.items()}
    return f"""(method) => {{
    const about = {json.dumps(about)}, shown = (visible) => ({{visible, __type__: "update"}});
    return [...Object.keys(about).map((name) => shown(name === method)), shown(about[method])];
}}"""

"""The token menu of models that pool by attention, without the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import pytest

import vitviz
from vitviz import METHODS, Model
from vitviz.attribution.methods import TokenQuery
from vitviz.ui.controls import (
    MOST_LISTED,
    POOLING_QUERY,
    ClassMenu,
    HeadRadio,
    LayerSlider,
    MethodRadio,
    NumberSlider,
    TokenMenu,
    has_query,
    token_choices,
    token_menu,
    token_query,
    token_value,
)
from vitviz.ui.panels import ControlPanel, default_settings
from vitviz.ui.sight import SightPicker

Make = Callable[..., Model]
POOLED = {"cls_token": False, "pooling": "attention"}
ASKING = [name for name, method in METHODS.items() if any(isinstance(part, TokenQuery) for part in method.parameters)]
# What starts at the pooling query, and what can only start at a token.
FROM_THE_QUERY = {"rollout", "gradient_rollout", "relevance"}


def panel_of(model: Model) -> ControlPanel:
    with gr.Blocks():
        return ControlPanel(model, SightPicker(model))


def test_the_pooling_query_comes_first_and_is_chosen(make_model: Make) -> None:
    model = make_model(**POOLED)
    panel = panel_of(model)
    assert panel.token.choices[0] == ("The pooling query", POOLING_QUERY)
    assert panel.token.value == POOLING_QUERY
    assert panel.token.choices[1][0] == "Mean patch"
    said = panel.read([part.value for part in panel.components])
    assert {name: said.parameters[name]["query"] for name in ASKING} == dict.fromkeys(ASKING)
    assert said.parameters == default_settings(model).parameters


@pytest.mark.parametrize("changes", [{}, {"cls_token": False, "pooling": "mean"}])
def test_models_without_it_do_not_offer_it(make_model: Make, changes: dict[str, Any]) -> None:
    model = make_model(**changes)
    panel = panel_of(model)
    assert POOLING_QUERY not in [value for _, value in panel.token.choices]
    assert panel.token.value == model.network.config.layout(16, 24).default_query == default_query(model)


def default_query(model: Model) -> Any:
    return default_settings(model).parameters["attention"]["query"]


def test_what_is_offered_is_what_is_meant(make_model: Make) -> None:
    model = make_model(**POOLED, register_tokens=2)
    layout = model.network.config.layout(16, 24)
    queries = [token_query(value) for _, value in token_choices(model, layout)]
    assert queries[:5] == [None, "register 1", "register 2", "patches", (0, 0)]
    assert [token_value(query) for query in queries] == [value for _, value in token_choices(model, layout)]


@pytest.mark.parametrize(("columns", "is_listed"), [(MOST_LISTED // 4, True), (MOST_LISTED // 4 + 1, False)])
def test_patches_are_listed_or_written(make_model: Make, columns: int, is_listed: bool) -> None:
    model = make_model(register_tokens=2)
    layout = model.network.config.layout(16, 4 * columns)
    menu = token_menu(model, layout)
    listed = [value for _, value in menu["choices"]]
    assert listed[:4] == ["cls", "register 1", "register 2", "patches"]
    assert len(listed) == 4 + is_listed * 4 * columns and menu["allow_custom_value"] != is_listed
    assert ("write its place" in menu["info"]) != is_listed
    assert has_query(model, layout, (3, columns - 1)) and not has_query(model, layout, (3, columns))
    update, _ = panel_of(model).token_menu(model, layout, default_settings(model))
    assert {name: update[name] for name in menu} == menu and update["value"] == "cls"


def test_the_page_on_performance_says_how_many_are_listed() -> None:
    page = Path(__file__).parents[2] / "docs" / "performance.md"
    assert f"A menu lists at most {MOST_LISTED:,} patches" in page.read_text()


@pytest.mark.parametrize("said", ["3,5", "3, 5", "(3, 5)", "Patch (3, 5)", " 3 ,5 "])
def test_a_patch_is_written_as_one_would(said: str) -> None:
    assert token_query(said) == (3, 5)


@pytest.mark.parametrize(
    "said", ["3", "3;5", "3,5,7", "-3,5", "3,-5", "1.3,5", "(3, 5) and", "-", "", "3,", "1" * 99 + ",5", "a cat"]
)
def test_what_is_no_patch_is_left_to_who_knows_the_tokens(make_model: Make, said: str) -> None:
    model = make_model()
    assert token_query(said) == said
    assert not has_query(model, model.network.config.layout(16, 24), token_query(said))


def test_maps_start_from_it_or_say_from_where_they_start(make_model: Make) -> None:
    model = make_model(**POOLED)
    parameters = default_settings(model).parameters
    analysis = vitviz.analyze(np.random.default_rng(0).integers(0, 255, (16, 24, 3), dtype=np.uint8), model)
    for name in ASKING:
        found = analysis.map(name, **parameters[name])
        of_the_mean = analysis.map(name, **{**parameters[name], "query": "patches"})
        assert "the mean patch" in of_the_mean.token_map.description
        if name in FROM_THE_QUERY:
            assert "the pooling query" in found.token_map.description
            assert not np.allclose(found.values, of_the_mean.values)
        else:
            assert found.token_map.description == of_the_mean.token_map.description


def test_a_menu_that_is_made_anew_keeps_what_the_model_has(make_model: Make) -> None:
    pooling, classic = make_model(**POOLED), make_model()
    layouts = {model: model.network.config.layout(16, 24) for model in (pooling, classic)}
    panel = panel_of(pooling)
    for chosen, model, kept in (
        (None, pooling, None),
        ((1, 2), pooling, (1, 2)),
        ("cls", pooling, None),
        (None, classic, "cls"),
        ("patches", classic, "patches"),
        ((9, 9), classic, "cls"),
    ):
        settings = default_settings(model)
        for said in settings.parameters.values():
            said.update({"query": chosen} if "query" in said else {})
        update, settings = panel.token_menu(model, layouts[model], settings)
        assert update["value"] == token_value(kept)
        assert update["value"] in [value for _, value in update["choices"]]
        assert {settings.parameters[name]["query"] for name in ASKING} == {kept}


@pytest.mark.parametrize("slider", [NumberSlider(1, 6, value=2), LayerSlider(1, 6, value=2)])
def test_a_box_that_was_emptied_says_nothing_and_is_no_error(slider: NumberSlider | LayerSlider) -> None:
    assert slider.preprocess(None) is None and slider.preprocess(3) == 3


@pytest.mark.parametrize("kind", [MethodRadio, HeadRadio, ClassMenu, TokenMenu])
def test_what_a_control_said_of_the_model_before_is_no_error(kind: Callable[..., Any]) -> None:
    control = kind(["one", "two"], value="one")
    assert control.preprocess("of the model before") == "one" and control.preprocess("two") == "two"

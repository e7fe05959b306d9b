"""All methods compared: one question, and card, scores, the map that it opens and its link are the same."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.driver import (
    EXPLORER,
    FIGURE_GAP,
    FIGURE_WIDTH,
    canvas_values,
    click,
    close_menus,
    open_panel,
    opened_page,
    page_at,
    save_figure,
    settle,
    state,
)
from tests.support.modules import OwnViT, load_own
from tests.ui.answers import Expected, Library
from tests.ui.explorer.page_driver import SmallApp, made, small_app
from vitviz import METHODS
from vitviz.evaluation.comparison import Comparison, compare
from vitviz.ui.links import read_link
from vitviz.ui.normalize import normalize
from vitviz.ui.state import PageState

pytestmark = pytest.mark.browser

SECONDS = 120
# Of one that pools by attention, all methods show maps; the others have the class of the classifier's own token.
MODELS = {
    "pooled": partial(made, 24, 24, 0, 4, pooling="attention"),
    "module": lambda: load_own(OwnViT("written out", has_bias=True), engine="module"),
}
SERVING = {name: [each for each in METHODS if name == "pooled" or each != "pooling_attention"] for name in MODELS}
# What was chosen when all are compared, the last of it last, and how the page says it.
QUESTIONS: Mapping[str, tuple[dict[str, dict[str, Any]], str]] = {
    "pooled": (
        {
            "rollout": {"discard_ratio": 0.5, "query": [4, 4]},
            "attention": {"query": [2, 1], "layer": 1, "head": 1, "direction": "column"},
        },
        "from patch (2, 1), about “{best}”; layer 1 of 0–2, head 1, or layers 0 to 2.",
    ),
    "module": (
        {"relevance": {"target": 2, "start_layer": 1}},
        "from the CLS token, about “class 2”; layer 2 of 0–2, mean of 4 heads, or layers 1 to 2.",
    ),
}
# One that the page computes, and one that the app does, of which the saved figure and another page are looked at too.
SAVED = ("attention", "grad_cam")
# How each map differs from that, and the layers that it reads.
NO_CLASS, NO_TOKEN = "about no class", "from no single token"
DIFFERENCES: Mapping[str, Mapping[str, str]] = {
    "pooled": {
        "attention": f"layer 1 of 0–2, head 1 · {NO_CLASS} · Direction: is attended by",
        "pooling_attention": f"head 1 · {NO_TOKEN} · {NO_CLASS}",
        "rollout": f"layers 0 to 2 · {NO_CLASS} · Discard ratio: 0.5",
        "relevance": "layers 0 to 2",
        "grad_cam": f"layer 1 of 0–2 · {NO_TOKEN}",
        "occlusion": f"the whole network · {NO_TOKEN}",
    },
    "module": {
        "attention": f"layer 2 of 0–2, mean of 4 heads · {NO_CLASS}",
        "rollout": f"layers 1 to 2 · {NO_CLASS}",
        "attention_flow": f"layers 1 to 2 · {NO_CLASS}",
        "relevance": "layers 1 to 2",
        "legrad": f"layers 1 to 2 · {NO_TOKEN}",
        "grad_cam": f"layer 2 of 0–2 · {NO_TOKEN}",
    },
}


@dataclass(frozen=True)
class Compared:
    """A page on which all methods were compared."""

    name: str
    page: Page
    app: SmallApp
    library: Library
    scores: Comparison


def asked(name: str, method: str) -> dict[str, Any]:
    """What a method is asked: the token, the class, the layers and the options, as far as it has them."""
    names = {parameter.name for parameter in METHODS[method].parameters}
    question = {key: value for each in QUESTIONS[name][0].values() for key, value in each.items()}
    found = {key: value for key, value in question.items() if key in names}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}


@pytest.fixture(scope="module", params=list(MODELS))
def compared(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Compared]:
    name = request.param
    model = MODELS[name]()
    with small_app(model) as app, opened_page(browser, app.address) as page:
        # What the page shows by itself, such as the square with which it opens, is no part of the question.
        page.evaluate(
            f"{EXPLORER}.store.patchView(0, {{ method: 'rollout', parameters: {{ query: [0, 0], exclude: 'sinks' }} }})"
        )
        for method, chosen in QUESTIONS[name][0].items():
            ask(page, method, chosen)
        open_panel(page, "compare")
        page.locator(".vx-compare-start").click()
        expect(page.locator(".vx-compared summary")).to_have_count(len(SERVING[name]), timeout=1000 * SECONDS)
        given: dict[str, dict[str, Any]] = {each: asked(name, each) for each in SERVING[name]}
        target = [each.pop("target") for each in given.values() if "target" in each]
        scores = compare(app.analysis, given, target[0] if target else None)
        yield Compared(name, page, app, Library(model), scores)


def ask(page: Page, method: str, parameters: Mapping[str, Any]) -> None:
    """Choose a method and parameters, as the controls do."""
    page.evaluate(f"(method) => {EXPLORER}.store.change(0, {{ method }})", method)
    page.evaluate(f"(parameters) => {EXPLORER}.store.ask([parameters])", parameters)
    settle(page)


@pytest.mark.parametrize("method", METHODS)
def test_a_card_is_the_map_that_it_opens_and_that_the_link_says(
    compared: Compared, browser: Browser, method: str
) -> None:
    page, library = compared.page, compared.library
    card = page.locator(f'.vx-compared[data-method="{method}"]')
    if method not in SERVING[compared.name]:
        expect(card).to_have_count(0)
        return
    comparison = f"{EXPLORER}.panels.comparison"
    shown = page.evaluate(
        f"(name) => Array.from({comparison}.packs[name].values, (value) => Number.isNaN(value) ? null : value)", method
    )
    areas = page.evaluate(f"(name) => {comparison}.scores.maps.find((each) => each.method === name).areas", method)
    card.get_by_role("button", name=f"Show {METHODS[method].title} on the picture").click()
    opened = PageState.from_json(state(page))
    link = page.evaluate(f"{EXPLORER}.latest.link")
    expected = Expected(library, opened.views[0])
    assert opened.views[0].method == method
    assert normalize(read_link(link).state, [expected.analysis])[0].views == opened.views
    np.testing.assert_allclose(
        [math.nan if value is None else value for value in shown], expected.values, rtol=1e-4, atol=1e-7
    )
    expected.check_values([None if math.isnan(value) else value for value in canvas_values(page)])
    assert opened.views[0].parameters == asked(compared.name, method)
    # The scores are those of this map.
    [scored] = [each for each in compared.scores.maps if each.method == method]
    assert areas == pytest.approx(scored.areas, rel=1e-3, abs=1e-4)
    if method not in SAVED:
        return
    # So is the saved figure, to what two sizes of one picture differ by.
    canvas = page.evaluate("document.querySelector('.vx-canvas').toDataURL()")
    with (
        Image.open(BytesIO(base64.b64decode(canvas.partition(",")[2]))) as drawn,
        Image.open(save_figure(page)) as saved,
    ):
        margin = saved.width * FIGURE_GAP / (2 * FIGURE_GAP + FIGURE_WIDTH)
        kept = (margin, margin, saved.width - margin, margin + (saved.width - 2 * margin) * drawn.height / drawn.width)
        figure = saved.convert("RGB").resize(drawn.size, box=kept)
        distance = np.abs(np.asarray(figure, dtype=float) - np.asarray(drawn.convert("RGB"), dtype=float))
    assert distance.mean() < 4 and distance.max(axis=-1).mean() < 8
    close_menus(page)
    with page_at(browser, compared.app.address, link.removeprefix("?")) as other:
        expected.check_values([None if math.isnan(value) else value for value in canvas_values(other)])


def test_one_line_names_the_question_and_a_card_says_how_it_differs(compared: Compared) -> None:
    page, best = compared.page, compared.app.analysis.predictions(1)[0].label
    words = QUESTIONS[compared.name][1].format(best=best)
    expect(page.locator(".vx-question")).to_have_text(f"One question for all: {words}")
    for method, difference in DIFFERENCES[compared.name].items():
        expect(page.locator(f'.vx-compared[data-method="{method}"] .vx-asked')).to_have_text(difference)
    # Another square on the picture changes neither the maps nor what is said of them.
    ask(page, "attention", {"query": [3, 3]})
    expect(page.locator(".vx-question")).to_have_text(f"One question for all: {words}")


def test_a_card_opens_in_the_map_that_was_compared(browser: Browser, tiny: SmallApp) -> None:
    with page_at(browser, tiny.address, "layout=two&second.method=relevance&second.p.target=1") as page:
        page.locator(".vx-canvas").nth(1).click()
        open_panel(page, "compare")
        expect(page.locator(".vx-question")).to_contain_text("about “b”")
        page.locator(".vx-compare-start").click()
        card = page.locator('.vx-compared[data-method="grad_cam"]')
        expect(card).to_be_visible(timeout=1000 * SECONDS)
        page.locator(".vx-canvas").nth(0).click()
        card.get_by_role("button").click()
        views = state(page)["views"]
        assert [view["method"] for view in views] == ["attention", "grad_cam"] and views[1]["parameters"]["target"] == 1
        # Without B, there is nothing that its maps could be of.
        click(page, ".vx-compare-end")
        expect(page.locator(".vx-compared")).to_have_count(0)
        expect(page.locator(".vx-question")).not_to_contain_text("about “b”")

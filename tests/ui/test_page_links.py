"""Links: the address is the page, for whoever opens it and for the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

import vitviz
from tests.driver import (
    EXPLORER,
    canvas,
    canvas_values,
    caption,
    choose_example,
    choose_layout,
    choose_method,
    choose_model,
    click_patch,
    expect_map,
    first_view,
    notice,
    open_link,
    open_menu,
    open_panel,
    open_settings,
    page_at,
    settle,
    state,
    upload,
)
from tests.support.visits import on_loop
from tests.ui.answers import Library, check_page
from tests.ui.explorer.page_driver import Apps, SmallApp
from vitviz import Analysis
from vitviz.ui.links import read_link
from vitviz.ui.service import NO_TARGET
from vitviz.weights import BUNDLED

pytestmark = pytest.mark.browser


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A picture larger than the page draws it."""
    noise = np.random.default_rng(1).integers(0, 255, (4, 9, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((900, 400)).save(tmp_path / "wide.png")
    return tmp_path / "wide.png"


def shown(page: Page) -> tuple[dict[str, Any], list[str], list[list[float]]]:
    """State, captions and values."""
    settle(page)
    page.mouse.move(1, 1)
    settle(page)
    captions = [each.inner_text() for each in page.locator(".vx-status").all() if each.is_visible()]
    values = [np.nan_to_num(canvas_values(page, pane), nan=-1).tolist() for pane in range(len(captions))]
    return state(page), captions, values


@pytest.mark.long
def test_a_link_that_is_copied_and_opened_elsewhere_shows_the_same(
    cifar_page: Page, browser: Browser, cifar: SmallApp, wide: Path
) -> None:
    page = cifar_page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    upload(page, wide)
    analysis = vitviz.analyze(wide, cifar.model, "native")
    choose_method(page, "relevance")
    page.locator(".vx-predictions button").nth(1).click()
    settle(page)
    click_patch(page, analysis, 2, 5)
    canvas(page).click(position={"x": 5, "y": 5}, modifiers=["Shift"])
    choose_layout(page, "two")
    settle(page)
    canvas(page, 1).click()
    settle(page)
    choose_example(page, "rocket.jpg")
    choose_method(page, "rollout")
    page.locator(".vx-colormap").select_option("viridis")
    panel = open_panel(page, "save")
    panel.locator("[data-act=link]").click()
    expect(panel.locator(".vx-said")).to_contain_text("Whoever has this link sees your picture")
    link = panel.locator(".vx-code").inner_text()
    assert link == page.url == page.evaluate("navigator.clipboard.readText()")
    before = shown(page)
    context = browser.new_context(bypass_csp=True, viewport={"width": 1400, "height": 1000})
    other = context.new_page()
    other.goto(link)
    other.wait_for_function(f"() => {EXPLORER}")
    assert shown(other) == before
    expect(notice(other)).not_to_be_visible()
    assert other.url == link
    # An id that nobody gave away opens no picture.
    name = before[0]["views"][0]["picture"].removeprefix("picture:")
    open_link(other, link.replace(name, name[::-1]))
    expect(notice(other)).to_contain_text("no longer kept here")
    context.close()


@pytest.mark.parametrize(
    "link",
    [
        "example=rocket.jpg&fit=native&resolution=48&method=attention&p.layer=1&p.head=3&p.query=3,5",
        pytest.param("method=rollout&p.head_fusion=max&p.start_layer=1&p.query=3,5&grid=true", marks=pytest.mark.long),
        pytest.param("method=relevance&p.target=3&p.query=1,11&colormap=gray&smooth=true", marks=pytest.mark.long),
        pytest.param("method=attention&p.query=2,2&pins=1,1;cls;0,7&panel=save", marks=pytest.mark.long),
        pytest.param("method=grad_cam&heads-off=0.1;2.3&patches-off=3.5&panel=switches", marks=pytest.mark.long),
        "method=attention&layout=two&second.method=attention_mass&second.p.mass=0.3&second.example=coffee.jpg&opacity=0.4",
        pytest.param("method=rollout&layout=difference&second.method=attention", marks=pytest.mark.long),
        "method=attention&p.direction=column&p.query=4,4&layout=slide&divider=0.25&fade=false&shared=true",
        pytest.param("method=attention&panel=guide&guide=3", marks=pytest.mark.long),
    ],
)
def test_a_link_opens_what_it_says(browser: Browser, address: str, library: Library, link: str) -> None:
    with page_at(browser, address, link) as page:
        expect(notice(page)).not_to_be_visible()
        wanted = read_link(f"?{link}").state.to_json()
        found = state(page)
        for view, expected in zip(found["views"], wanted["views"], strict=True):
            if view["method"] == "attention" and expected["parameters"].get("layer") == 5:
                expected["parameters"].pop("layer")
        assert found == wanted
        check_page(page, library)


def test_a_link_with_nonsense_opens_what_can_be_and_says_the_rest(
    browser: Browser, address: str, library: Library
) -> None:
    link = "example=../secret&model=nothing&fit=other&method=attention&p.layer=99&p.head=a&colormap=pink&p.query=77,1"
    with page_at(browser, address, link) as page:
        for word in ("secret", "nothing", "other", "99", "pink"):
            expect(notice(page)).to_contain_text(word)
        expect(notice(page)).not_to_contain_text("Traceback")
        check_page(page, library)
        assert "nothing" not in page.url and "secret" not in page.url


@pytest.mark.long
@pytest.mark.parametrize(
    ("link", "parameters"),
    [
        ("#layer=1&head=3&map=column&token=3,5", {"layer": 1, "head": 3, "direction": "column", "query": [3, 5]}),
        pytest.param("?tab=maps&method=attention&p.direction=looks+at&p.layer=2", {"layer": 2}, marks=pytest.mark.long),
    ],
)
def test_links_of_the_version_before_are_read(
    browser: Browser, address: str, library: Library, link: str, parameters: dict[str, Any]
) -> None:
    with page_at(browser, address) as page:
        open_link(page, f"/{link}")
        settle(page)
        assert (first_view(page)["method"], first_view(page)["parameters"]) == ("attention", parameters)
        check_page(page, library)
        assert "tab=" not in page.url and "#" not in page.url


@pytest.mark.long
def test_a_link_of_the_version_before_names_a_class_by_its_label(
    browser: Browser, address: str, library: Library
) -> None:
    seen = f"model={BUNDLED[0]}&example=rocket.jpg&fit=native&resolution=96"
    with page_at(browser, address, f"{seen}&tab=maps&method=relevance&p.target=dog&p.query=1%2C11") as page:
        view = first_view(page)
        label = library.model(read_link("").state.views[0]).labels.index("dog")
        assert view["parameters"] == {"target": label, "query": [1, 11]}
        check_page(page, library)


@pytest.mark.long
def test_a_link_to_a_class_map_of_a_model_without_classes_says_so(browser: Browser, apps: Apps) -> None:
    app = apps("features")
    with page_at(browser, app.address, "method=relevance&p.target=3") as page:
        expect(notice(page)).to_contain_text("has no class 3.")
        expect(caption(page)).to_have_text(f"{NO_TARGET}.")
        assert (first_view(page)["method"], first_view(page)["parameters"]) == ("relevance", {})
        expect(page.locator(".vx-predictions-part")).not_to_be_visible()
        # It can be about likeness instead.
        page.locator('.vx-like button[data-like="example:rocket.jpg"]').click()
        check_page(page, Library(app.model))


def test_the_page_opens_with_a_map_that_answers_the_hand_and_says_so_in_its_address(
    page: Page, example: Analysis, library: Library
) -> None:
    open_link(page, "/?__theme=light")
    settle(page)
    layer, query = example.trace.layers // 2, first_view(page)["parameters"]["query"]
    expect_map(page, example.map("attention", layer=layer, query=tuple(query)))
    check_page(page, library)
    # Of all patches, it is the one whose attention is farthest from the mean.
    count, weights = example.trace.layout.prefix_count, example.trace.fused(layer)
    rows = weights[count:, count:]
    farthest = count + int((rows - rows.mean(0)).norm(dim=1).argmax())
    assert query == list(example.trace.layout.cell(farthest))
    address = f"?__theme=light&method=attention&p.layer={layer}&p.query={query[0]},{query[1]}"
    assert page.url.endswith(address)
    # A link without a method means what it meant.
    open_link(page, "/?__theme=light&example=chelsea.jpg")
    expect_map(page, example.rollout())


def test_the_address_follows_every_choice_and_keeps_the_words_of_the_host(cifar_page: Page) -> None:
    """Each alone: in the version before, some of them left the address as it was."""
    page = cifar_page
    choose_example(page, "coffee.jpg")
    assert "example=coffee.jpg" in page.url
    open_settings(page).locator(".vx-fit").select_option("native")
    settle(page)
    assert "fit=native" in page.url
    offered = page.locator(".vx-resolution option").evaluate_all("all => all.map((option) => option.value)")
    other = next(value for value in offered if value.isdecimal())
    page.locator(".vx-resolution").select_option(other)
    settle(page)
    assert f"resolution={other}" in page.url
    choose_method(page, "legrad")
    assert "method=legrad" in page.url
    page.locator(".vx-predictions button").nth(2).click()
    settle(page)
    assert "p.target=" in page.url
    page.locator(".vx-grid").check()
    settle(page)
    assert "grid=true" in page.url and "__theme=light" in page.url
    assert page.url.count("?") == 1


def test_back_and_forward_go_through_what_was_shown(cifar_page: Page, cifar: SmallApp) -> None:
    page, library = cifar_page, Library(cifar.model)
    seen = [shown(page)]
    for change in (
        lambda: choose_example(page, "rocket.jpg"),
        lambda: choose_method(page, "relevance"),
        lambda: choose_model(page, ""),
        lambda: choose_example(page, "coffee.jpg"),
    ):
        change()
        found = shown(page)
        if found[0] != seen[-1][0]:
            seen.append(found)
    assert len(seen) == 4
    for place in (2, 1, 0):
        page.go_back()
        assert shown(page) == seen[place], place
        check_page(page, library)
    for place in (1, 2, 3):
        page.go_forward()
        assert shown(page) == seen[place], place
        check_page(page, library)


@pytest.mark.long
def test_a_page_that_is_loaded_again_shows_the_same(page: Page) -> None:
    choose_example(page, "rocket.jpg")
    choose_method(page, "legrad")
    before = shown(page)
    page.reload()
    page.wait_for_function(f"() => {EXPLORER}")
    assert shown(page) == before


def test_a_quick_change_while_a_map_is_computed_ends_at_the_last(page: Page, library: Library) -> None:
    """As in the failure of the version before: a late analysis overwrote what was chosen meanwhile."""
    open_menu(page, "pictures")
    page.locator('.vx-all-examples button[data-example="example:rocket.jpg"]').click()
    page.locator(".vx-method").select_option("relevance")
    open_menu(page, "pictures")
    page.locator('.vx-all-examples button[data-example="example:coffee.jpg"]').click()
    page.locator(".vx-method").select_option("legrad")
    open_menu(page, "pictures")
    page.locator('.vx-all-examples button[data-example="example:astronaut.jpg"]').click()
    check_page(page, library)
    assert (first_view(page)["picture"], first_view(page)["method"]) == ("example:astronaut.jpg", "legrad")


def test_an_analysis_that_is_not_kept_any_more_is_asked_for_again(
    cifar_page: Page, cifar: SmallApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server keeps one analysis at a time, and somebody else looks at another picture."""
    page, cache = cifar_page, cifar.handlers.service.cache
    uid = page.evaluate(f"{EXPLORER}.panes[0].facts.uid")
    assert cache.get(uid) is not None
    monkeypatch.setattr(cache, "limit", 1)
    on_loop(cifar.handlers.open_link({"link": "?example=rocket.jpg&fit=squash"}, lambda _: None))
    assert cache.get(uid) is None
    choose_method(page, "relevance")
    expect_map(page, cifar.analysis.map("relevance"))
    check_page(page, Library(cifar.model))
    assert page.evaluate(f"{EXPLORER}.panes[0].facts.uid") != uid
    expect(caption(page)).not_to_contain_text("no longer")


def test_a_state_that_the_server_refuses_does_not_last(page: Page, library: Library) -> None:
    """Whatever brought it: the last legal one takes its place, and the page says so."""
    choose_method(page, "grad_cam")
    before = state(page)
    page.evaluate(f"{EXPLORER}.store.patchView(0, {{ method: 'relevance', parameters: {{ direction: 'column' }} }})")
    expect(notice(page)).to_contain_text("parameters has no 'direction'")
    settle(page)
    assert state(page) == before
    check_page(page, library)

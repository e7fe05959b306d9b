"""Links: the address is the page, for whoever opens it and for the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route, expect

import vitviz
from tests.driver import (
    DESKTOP,
    EXPLORER,
    UNFOLD,
    canvas,
    canvas_values,
    caption,
    choose_example,
    choose_method,
    click_patch,
    expect_map,
    first_view,
    new_context,
    new_page,
    notice,
    open_link,
    open_menu,
    open_panel,
    page_at,
    settle,
    state,
    upload,
)
from tests.support.visits import on_loop
from tests.ui.answers import Library, check_page
from tests.ui.explorer.page_driver import SmallApp
from vitviz.analysis.recomputable import kept_bytes

pytestmark = pytest.mark.browser


def shown(page: Page) -> tuple[dict[str, Any], list[str], list[list[float]]]:
    """State, captions and values."""
    page.mouse.move(1, 1)
    found = state(page)
    captions = page.locator(".vx-pane:not([hidden]) .vx-status").all_text_contents()
    return found, captions, [np.nan_to_num(canvas_values(page, pane), nan=-1).tolist() for pane in range(len(captions))]


def test_a_link_that_is_copied_and_opened_elsewhere_shows_the_same(
    cifar_page: Page, browser: Browser, cifar: SmallApp, wide: Path
) -> None:
    page = cifar_page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    upload(page, wide)
    choose_method(page, "relevance")
    click_patch(page, vitviz.analyze(wide, cifar.model, "native"), 2, 5)
    panel = open_panel(page, "save")
    panel.locator("[data-act=link]").click()
    expect(panel.locator(".vx-said")).to_contain_text("Whoever has this link sees your picture")
    # The menu that copies it is not part of it.
    link = panel.locator(".vx-code").inner_text()
    assert link == page.url == page.evaluate("navigator.clipboard.readText()")
    before = shown(page)
    with new_context(browser, bypass_csp=True, viewport=DESKTOP) as context:
        other = context.new_page()
        other.goto(link)
        assert shown(other) == before and other.url == link
        expect(notice(other)).not_to_be_visible()
        # An id that nobody gave away opens no picture.
        name = before[0]["views"][0]["picture"].removeprefix("picture:")
        open_link(other, link.replace(name, name[::-1]))
        expect(notice(other)).to_contain_text("no longer kept here")


def test_no_method_answers_for_the_square_that_the_page_opens_with(browser: Browser, cifar: SmallApp) -> None:
    """Nor after a reload, whose address names that square."""
    page = new_page(browser)
    try:
        page.goto(f"{cifar.address}/?__theme=light")
        settle(page)
        page.evaluate(UNFOLD)
        opened = first_view(page)["parameters"]
        assert "query" in opened
        for methods in (("gradient_rollout", "relevance"), ("rollout", "attention")):
            page.reload()
            settle(page)
            page.evaluate(UNFOLD)
            assert "p.query=" in page.url and first_view(page)["parameters"] == opened
            for method in methods:
                choose_method(page, method)
                assert first_view(page)["parameters"] == {}, method
            for _ in methods:
                page.go_back()
                settle(page)
            assert first_view(page)["parameters"] == opened
        # A square that is clicked is asked of every method, also after a reload on the way.
        click_patch(page, cifar.analysis, 2, 5)
        choose_method(page, "grad_cam")
        page.reload()
        settle(page)
        page.evaluate(UNFOLD)
        choose_method(page, "relevance")
        check_page(page, Library(cifar.model))
        assert first_view(page)["parameters"] == {"query": [2, 5]}
    finally:
        page.close()


def test_a_page_over_plain_http_draws_maps_of_the_server(browser: Browser, cifar: SmallApp) -> None:
    # Browsers call this machine's own addresses secure, and offer other pages over http less.
    elsewhere = "http://vit.example.org"

    def answer(route: Route) -> None:
        address = route.request.url.replace(elsewhere, cifar.address)
        told = ("origin", "referer", "sec-")
        headers = {name: value for name, value in route.request.headers.items() if not name.startswith(told)}
        route.fulfill(response=route.fetch(url=address, headers=headers))

    with new_context(browser, bypass_csp=True) as context:
        page = context.new_page()
        page.route(f"{elsewhere}/**", answer)
        page.goto(f"{elsewhere}/?method=relevance")
        settle(page)
        assert not page.evaluate("isSecureContext")
        check_page(page, Library(cifar.model))


def test_a_link_with_nonsense_opens_what_can_be_and_says_the_rest(
    browser: Browser, address: str, library: Library
) -> None:
    link = "example=../secret&fit=other&method=attention&p.layer=99&p.head=a&colormap=pink&p.query=77,1"
    with page_at(browser, address, link) as page:
        for word in ("secret", "other", "99", "pink"):
            expect(notice(page)).to_contain_text(word)
        expect(notice(page)).not_to_contain_text("Traceback")
        check_page(page, library)
        assert "secret" not in page.url


def test_a_link_to_a_model_that_is_not_there_shows_its_picture_without_a_map(browser: Browser, cifar: SmallApp) -> None:
    with page_at(browser, cifar.address, "model=nothing&example=rocket.jpg&method=relevance") as page:
        levels = "canvas => canvas.getContext('2d').getImageData(canvas.width / 2, canvas.height / 2, 1, 1).data[3]"

        def expect_no_map() -> None:
            settle(page)
            expect(caption(page)).to_contain_text("model = 'nothing'")
            expect(caption(page)).to_contain_text("The picture alone is shown")
            expect(page.locator(".vx-lead")).to_contain_text("The picture alone is shown")
            for part in ("predictions", "tabs", "sheet", "strip", "legend", "badge", "tools"):
                expect(page.locator(f".vx-{part}").first).not_to_be_visible()
            assert canvas(page).evaluate(levels) == 255
            assert page.evaluate(f"{EXPLORER}.panes[0].facts") is None

        expect_no_map()
        # Its address stays, and another picture is one without a map, too.
        assert "model=nothing" in page.url
        choose_example(page, "coffee.jpg")
        expect_no_map()
        page.get_by_role("button", name="Use the model of this page").click()
        settle(page)
        check_page(page, Library(cifar.model))
        assert (first_view(page)["method"], first_view(page)["picture"]) == ("relevance", "example:coffee.jpg")
    # Beside it, the other map is there.
    link = "method=rollout&layout=two&second.model=nothing&second.method=rollout"
    with page_at(browser, cifar.address, link) as page:
        expect(caption(page)).to_contain_text("Attention rollout for the CLS token")
        expect(caption(page, 1)).to_contain_text("model = 'nothing'")
        expect(canvas(page, 1)).to_be_visible()


def test_back_and_forward_go_through_what_was_shown(cifar_page: Page, cifar: SmallApp) -> None:
    page, library = cifar_page, Library(cifar.model)
    seen = [shown(page)]
    for change in (
        lambda: choose_example(page, "rocket.jpg"),
        lambda: choose_method(page, "relevance"),
        lambda: choose_example(page, "coffee.jpg"),
    ):
        change()
        seen.append(shown(page))
    # However soon the next was chosen: the server has not said yet what the address of this one is.
    page.route("**/describe", lambda route: None)
    for method in ("rollout", "attention"):
        page.select_option(".vx-method", method)
        expect(caption(page)).to_contain_text(cifar.analysis.map(method).description)
    page.unroute("**/describe")
    settle(page)
    page.go_back()
    for places, go in (((3, 2, 1, 0), page.go_back), ((1, 2, 3), page.go_forward)):
        for place in places:
            go()
            assert shown(page) == seen[place], place
            check_page(page, library)


def test_a_picture_that_is_refused_or_gone_leaves_the_page_and_the_way_back(
    cifar_page: Page, cifar: SmallApp, wide: Path
) -> None:
    page, service = cifar_page, cifar.handlers.service
    for file in (wide, {"name": "a.pdf", "mimeType": "", "buffer": b"%PDF-"}):
        upload(page, file)
    service.pictures.upload(first_view(page)["picture"]).path.unlink()
    service.cache.drop(page.evaluate(f"{EXPLORER}.panes[0].facts.uid"))
    page.locator(".vx-method").select_option("relevance")
    expect(notice(page)).to_contain_text("no longer kept here")
    # The browser has what this needs.
    choose_method(page, "attention")
    expect_map(page, vitviz.analyze(wide, cifar.model, "native").attention())
    for _ in ("relevance", "the picture"):
        page.go_back()
        settle(page)
    page.go_back()
    check_page(page, Library(cifar.model))
    assert first_view(page)["picture"] == "example:chelsea.jpg"


def test_a_quick_change_while_a_map_is_computed_ends_at_the_last(page: Page, library: Library) -> None:
    """No late analysis takes the place of what was chosen meanwhile."""
    for name, method in (("rocket.jpg", "relevance"), ("coffee.jpg", "legrad"), ("astronaut.jpg", "legrad")):
        open_menu(page, "pictures")
        page.locator(f'.vx-all-examples button[data-example="example:{name}"]').click()
        page.locator(".vx-method").select_option(method)
    check_page(page, library)
    assert (first_view(page)["picture"], first_view(page)["method"]) == ("example:astronaut.jpg", "legrad")


def test_an_analysis_that_is_not_kept_any_more_is_asked_for_again(
    cifar_page: Page, cifar: SmallApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server keeps one analysis at a time, and somebody else looks at another picture."""
    page, cache = cifar_page, cifar.handlers.service.cache
    uid = page.evaluate(f"{EXPLORER}.panes[0].facts.uid")
    analysis = cache.get(uid)
    assert analysis is not None
    monkeypatch.setattr(cache.bound, "limit", 3 * kept_bytes(analysis) // 2)
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
    assert state(page) == before
    check_page(page, library)

"""The page as it opens, and that whoever looks at it here notices when it shows something else."""

from __future__ import annotations

import asyncio
import re
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Page, expect

import vitviz
from tests.driver import (
    EXPLORER,
    ask,
    choose_example,
    choose_method,
    expect_map,
    new_page,
    notice,
    open_link,
    open_panel,
    opened_page,
    page_at,
    settle,
)
from tests.support.example import COARSE, ROOT
from tests.support.waiting import wait_until
from tests.ui.answers import Library, check_page
from tests.ui.explorer.page_driver import small_app
from vitviz import Analysis, Model

pytestmark = pytest.mark.browser


# What is in the window: words of two letters and more, and controls; canvases count none.
IN_SIGHT = """() => {
    const isSeen = (part) => {
        const { width, top, bottom, left, right } = part.getBoundingClientRect();
        const isInWindow = width && bottom > 0 && right > 0 && top < innerHeight && left < innerWidth;
        return isInWindow && part.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    };
    const kinds = "button, select, input, summary, a[href], [role=button], [role=tab], [role=slider]";
    const controls = [...document.querySelectorAll(kinds)].filter(isSeen), words = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const { parentElement: part, textContent: text } = walk.currentNode;
        if (part.closest("script, style, option") || !isSeen(part)) continue;
        words.push(...(text.match(/\\S*\\p{L}{2}\\S*/gu) ?? []));
    }
    return [words.length, controls.length];
}"""


def test_it_opens_with_a_map_that_answers_the_hand_and_few_words_and_controls(
    browser: Browser, address: str, example: Analysis, library: Library
) -> None:
    page = new_page(browser)
    try:
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(f"{address}/?__theme=light")
        settle(page)
        words, controls = page.evaluate(IN_SIGHT)
        assert 40 < words <= 90 and 10 < controls <= 25, (words, controls)
        check_page(page, library)
        look = example.far_look()
        assert look is not None
        query = ",".join(map(str, look.query))
        asked = f"method=attention&p.layer={look.layer}&p.query={query}&p.head={look.head}"
        assert page.url.endswith(f"?__theme=light&{asked}")
        expect(page.locator(".vx-lead")).to_contain_text(f"{look.share:.0%} of its attention goes to the other")
        # The share of a place is more than that of its strongest square, where the legend ends.
        expect(page.locator(".vx-bar-of").first).to_have_text(re.compile(r"^◄?0[\d.]+per square►?$"))
        # A link without a method means what it meant.
        open_link(page, "/?__theme=light&example=chelsea.jpg")
        expect_map(page, example.rollout())
        expect(page.locator(".vx-each").first).to_be_hidden()
    finally:
        page.close()


@pytest.mark.parametrize("size", [(1440, 900), (390, 844), (720, 450)], ids=str)
def test_nothing_moves_while_it_opens(browser: Browser, address: str, size: tuple[int, int]) -> None:
    page = new_page(browser)
    page.add_init_script("""new PerformanceObserver((list) => {
        for (const { value, sources } of list.getEntries())
            (window.shifts ??= []).push([value, sources.map(({ node }) => node?.className)]);
    }).observe({ type: "layout-shift", buffered: true });""")
    try:
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.goto(address)
        settle(page)
        shifts = page.evaluate("window.shifts ?? []")
        # The names in the header and the tokens get their widths with their texts.
        assert sum(value for value, _ in shifts) < 0.03, shifts
    finally:
        page.close()


@pytest.mark.parametrize("event", ["change", "drop", "paste"])
def test_another_picture_ends_the_opening(browser: Browser, address: str, event: str) -> None:
    page = new_page(browser)
    page.emulate_media(reduced_motion="no-preference")
    # It does not end by itself.
    page.add_init_script("""addEventListener("DOMContentLoaded", () => {
        const sheet = new CSSStyleSheet();
        sheet.replaceSync(".vx-opening * { animation-play-state: paused !important; }");
        document.adoptedStyleSheets = [sheet];
    });""")
    try:
        page.goto(address)
        expect(page.locator(".vx-opening")).to_have_count(1)
        page.locator(".vx").dispatch_event(event)
        expect(page.locator(".vx-opening")).to_have_count(0)
    finally:
        page.close()


# Squares without which the model is not sure, and says so in many words.
LONG = [[row, column] for row in range(2, 9) for column in range(2, 9)]


def test_nothing_moves_when_a_question_or_a_message_comes(browser: Browser, address: str, example: Analysis) -> None:
    boxes = """() => ["canvas", "frames", "sheet", "tabs", "predictions", "compare-open"].map((name) => {
        const { left, top, width, height } = document.querySelector(`.vx-${name}`).getBoundingClientRect();
        return [name, left, top, width, height].join(" ");
    })"""
    # An address is not fetched, which the page says.
    paste = """() => {
        const clipboardData = new DataTransfer();
        clipboardData.setData("text/plain", "https://example.org/cat.jpg");
        document.dispatchEvent(new ClipboardEvent("paste", { clipboardData }));
    }"""
    with page_at(browser, address, "method=attention&p.layer=4&p.query=3,4") as page:
        for width, height in ((1440, 900), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_function("document.querySelector('.vx-canvas').getBoundingClientRect().right <= innerWidth")
            expect(page.locator(".vx-frame")).to_have_count(example.trace.layers)
            settle(page)
            before = page.evaluate(boxes)
            for question in ("target", "layers", "hide", "token"):
                ask(page, question)
                assert page.evaluate(boxes) == before, (width, question)
                page.evaluate(paste)
                expect(notice(page)).to_be_visible()
                assert page.evaluate(boxes) == before, (width, question)
            # A sentence that gets longer under the brush has its place.
            for squares, heads, begins in (
                ([[3, 5]], [], "Without 1 square:"),
                (LONG, [[0, 0]], f"Without {len(LONG)} squares and 1 head:"),
                ([], [], "Of the 108 things it knows:"),
            ):
                page.evaluate(f"{EXPLORER}.store.patchView(0, {{ patches_off: {squares}, heads_off: {heads} }})")
                expect(page.locator(".vx-headline")).to_contain_text(begins)
                settle(page)
                assert page.evaluate(boxes) == before, (width, begins)


def test_the_stage_is_as_high_as_the_first_screen_allows(browser: Browser, address: str) -> None:
    edges = """() => ["stage", "strip"].flatMap((name) => {
        const { top, bottom } = document.querySelector(`.vx-${name}`).getBoundingClientRect();
        return [top, bottom];
    })"""
    with page_at(browser, address) as page:
        # Two columns, with the film in sight; a phone and a zoom of 200 %, where the picture begins high.
        for width, height, least in ((1440, 900, 0.62), (1920, 1080, 0.66), (390, 844, None), (720, 450, None)):
            page.set_viewport_size({"width": width, "height": height})
            settle(page)
            top, bottom, _, film = page.evaluate(edges)
            if least is None:
                assert top <= height / 3, (width, top)
            else:
                assert least - 0.001 <= (bottom - top) / height <= 0.7 and film <= height, (width, top, bottom, film)


def test_it_opens_with_one_layer_and_fetches_the_others_for_the_hand(
    browser: Browser, address: str, example: Analysis
) -> None:
    """Sheet and film are those of the square with which it opens, before and after."""
    look, trace = example.far_look(), example.trace
    assert look is not None
    found = f"""(query) => {{
        const {{ attention }} = {EXPLORER}.panes[0], layers = [...Array({trace.layers}).keys()];
        const token = attention.token(...query);
        return layers.map((layer) => [0, 1, 2, 3, 4, 5, "mean", "max"].map((head) => [
            ...attention.map(layer, head, token, "row") ?? []]));
    }}"""
    page, asked = new_page(browser), list[str]()
    page.on("request", lambda request: asked.extend(re.findall(r"/layer%20(\d+)$", request.url)))
    layers = f"{EXPLORER}.panes[0].packs.loaded.size"
    # Nobody waits here until the page fetches them by itself.
    page.add_init_script(
        "const own = setTimeout; window.setTimeout = (act, wait) => (wait < 5000 || !wait ? own(act, wait) : 0);"
    )
    # Where the browser moves a pointer that rests is not known here, so that only those below are.
    swallow = "(event) => event.isTrusted && !window.moves && event.stopImmediatePropagation()"
    page.add_init_script(f"window.addEventListener('pointermove', {swallow}, true)")
    try:
        page.goto(address)
        settle(page)
        assert asked == [str(look.layer)]
        weights = trace.rows(look.query)
        expected = torch.cat([weights, weights.mean(1, keepdim=True), weights.amax(1, keepdim=True)], 1).numpy()
        np.testing.assert_allclose(page.evaluate(found, look.query), expected, rtol=2e-3, atol=1e-6)
        # Nothing else is made up, and no map of what another square asks.
        assert page.evaluate(found, [0, 0])[look.layer - 1] == [[]] * 8
        # The browser moves a pointer that rests where a page appears.
        page.evaluate("for (const _ of [1, 2]) window.dispatchEvent(new PointerEvent('pointermove', {screenX: 9}))")
        settle(page)
        assert asked == [str(look.layer)]
        page.evaluate("window.moves = true")
        page.mouse.move(700, 12)
        wait_until(lambda: page.evaluate(layers) == trace.layers)
        assert len(page.evaluate(found, [0, 0])[look.layer - 1][0]) == trace.layout.token_count
    finally:
        page.close()


# Each changes one thing that the page shows, and gives what takes it back.
SET = """const set = (selector, name, value) => {
    const part = document.querySelector(`#vv-explorer .vx ${selector}`), before = part[name];
    part[name] = value(before);
    return () => { part[name] = before; };
}"""
CHANGES = (
    "set('.vx-status', 'textContent', (before) => before + '.')",
    "set('.vx-high', 'textContent', () => '0.9')",
    "set('.vx-method', 'value', () => 'legrad')",
    "set('.vx-parameter input[type=range]', 'value', () => 2)",
    "set('.vx-fit', 'value', () => 'crop')",
    "set('.vx-predictions output', 'textContent', () => '99%')",
    "set('.vx-predictions button', 'ariaPressed', () => 'true')",
    """(() => {
        const canvas = document.querySelector('#vv-explorer .vx-canvas'), { width, height } = canvas;
        const pixels = canvas.getContext('2d').getImageData(0, 0, width, height);
        canvas.getContext('2d').fillRect(0, 0, 200, 200);
        return () => canvas.getContext('2d').putImageData(pixels, 0, 0);
    })()""",
    """(() => {
        const before = location.href;
        history.replaceState(history.state, '', before + '&resolution=48');
        return () => history.replaceState(history.state, '', before);
    })()""",
    f"""(() => {{
        const [pane] = {EXPLORER}.panes, shown = pane.values();
        pane.values = () => shown.map((value) => 1.02 * value);
        return () => {{ delete pane.values; }};
    }})()""",
)


@pytest.mark.long
def test_something_else_is_noticed(page: Page, library: Library) -> None:
    check_page(page, library)
    for change in CHANGES:
        page.evaluate(f"() => {{ {SET}; window.takeBack = {change}; }}")
        with pytest.raises(AssertionError):
            check_page(page, library)
        page.evaluate("() => window.takeBack()")
    # All of it was taken back.
    check_page(page, library)


def test_what_takes_long_is_seen_and_ends_when_its_page_is_closed(browser: Browser, bundled: Model) -> None:
    with small_app(bundled) as app:
        ended, kinds = threading.Event(), dict(app.handlers.kinds)

        async def watched(kind: str, *given: Any) -> dict[str, Any]:
            try:
                reply = await kinds[kind](*given)
                # A quick machine would have answered all before the page is closed.
                await asyncio.sleep(3600)
                return reply
            except asyncio.CancelledError:
                ended.set()
                raise

        app.handlers.kinds |= {kind: partial(watched, kind) for kind in ("map", "compare")}
        with opened_page(browser, app.address) as page:
            open_panel(page, "compare")
            page.locator(".vx-compare-start").click()
            busy = page.locator(".vx-busy")
            expect(busy).to_be_visible()
            expect(busy).to_have_css("opacity", "1")
            expect(busy.get_by_role("button", name="Stop")).to_be_visible()
            assert not ended.is_set()
        assert ended.wait(60)


def test_a_late_answer_about_another_picture_is_not_shown(page: Page, coarse_example: Analysis) -> None:
    """What hiding changes is computed after the slow map of another class, and the next picture comes first."""
    # Without most of the middle, the likeliest classes are others, and the bars are of these.
    model, hidden = coarse_example.model, [(row, column) for row in range(2, 6) for column in range(2, 6)]
    off = ";".join(f"{row}.{column}" for row, column in hidden)
    open_link(page, f"?panel=switches&resolution={COARSE}&patches-off={off}")
    changed = coarse_example.switched_off(patches=hidden)
    best = [model.labels[index] for index in changed.topk(5).indices.tolist()]
    expect(page.locator(".vx-predictions i")).to_have_text(best)
    choose_method(page, "occlusion")
    page.locator(".vx-predictions button").nth(1).click()
    choose_example(page, "flower.jpg")
    settle(page)
    flower = vitviz.analyze(ROOT / "assets" / "flower.jpg", model, resolution=COARSE).predictions(1)[0]
    expect(page.locator(".vx-headline")).to_have_text(
        f"Of the {len(model.labels)} things it knows: {flower.label}, {flower.probability:.0%}."
    )
    expect(page.locator(".vx-predictions output").first).to_have_text(f"{flower.probability:.0%}")
    expect(page.locator(".vx-changes")).not_to_be_visible()


def test_a_message_takes_no_click_from_what_lies_under_it(page: Page) -> None:
    """But for its own buttons."""
    under = """() => {
        const busy = document.querySelector(".vx-busy");
        busy.hidden = false;
        const found = (part) => {
            const { left, top, width, height } = part.getBoundingClientRect();
            return document.elementFromPoint(left + width / 2, top + height / 2);
        };
        const stop = busy.querySelector("button");
        return [Boolean(found(busy.firstElementChild).closest(".vx-messages")), found(stop) === stop];
    }"""
    assert page.evaluate(under) == [False, True]

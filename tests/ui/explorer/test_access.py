"""Nobody is left out: names, contrast, focus and targets of the page; what axe finds; touch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from tests.driver import (
    NEXT_FRAMES,
    ask,
    box_of,
    canvas,
    caption,
    choose_method,
    close_menus,
    downloaded,
    first_view,
    new_context,
    open_figure,
    open_menu,
    opened_page,
    page_at,
    patch_position,
    settle,
    state,
)
from tests.ui.explorer.page_driver import SmallApp

pytestmark = pytest.mark.browser

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
TARGET = 44
RATIO = 4.5
# A map about a class has other controls than one of a token.
METHODS = ("attention", "relevance", "rollout")

# Controls that can be seen and have no name.
UNNAMED = """() => {
    const texts = (parts) => [...parts].map((part) => part?.textContent ?? "").join("");
    const name = (part) => {
        const by = (part.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id));
        const own = part.matches("button, summary, a") ? part.textContent : "";
        return `${part.getAttribute("aria-label") ?? ""}${texts(by)}${texts(part.labels ?? [])}${own}`.trim();
    };
    const kinds = "button, input, select, textarea, summary, canvas[tabindex], [role=img]";
    const parts = [...document.querySelectorAll(`.vx :is(${kinds})`)];
    return parts.filter((part) => part.checkVisibility() && !name(part)).map((part) => part.outerHTML.slice(0, 160));
}"""
# Texts that can be seen and stand out less than WCAG 2.1 wants from what is behind them.
CONTRAST = """(least) => {
    const scratch = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const channels = (colour) => {
        scratch.clearRect(0, 0, 1, 1);
        scratch.fillStyle = colour;
        scratch.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = scratch.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = ([r, g, b, a], below) => [r, g, b].map((each, place) => each * a + below[place] * (1 - a));
    const chain = (part) => (part ? [...chain(part.parentElement), part] : []);
    const behind = (part) => chain(part).map((each) => channels(getComputedStyle(each).backgroundColor))
        .reduce((below, colour) => over(colour, below), [255, 255, 255]);
    const linear = (each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    const light = (colour) => {
        const [r, g, b] = colour.map((each) => linear(each / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const own = ({ childNodes }) => [...childNodes].filter(({ nodeType }) => nodeType === Node.TEXT_NODE)
        .map(({ textContent }) => textContent).join("").trim();
    const parts = [...document.querySelectorAll(".vx *")].filter((part) => own(part)
        && part.checkVisibility({ visibilityProperty: true }) && !part.closest(":disabled, option, .vx-skip"));
    return parts.flatMap((part) => {
        const opacity = chain(part).reduce((product, each) => product * Number(getComputedStyle(each).opacity), 1);
        const below = behind(part), [r, g, b, a] = channels(getComputedStyle(part).color);
        const pair = [light(over([r, g, b, a * opacity], below)), light(below)];
        const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
        return ratio < least ? [[ratio, part.className || part.tagName, own(part).slice(0, 60)]] : [];
    });
}"""
FOLD = "document.querySelectorAll('.vx details').forEach((each) => { each.open = false; })"
# What is touched, and lower or narrower than a finger: a radio or a check box with its label.
SMALL = """(least) => {
    const parts = [...document.querySelectorAll(".vx :is(button, select, summary, input, .vx-button)")];
    return parts.flatMap((part) => {
        if (!part.checkVisibility() || part.matches("[type=file], .vx-skip")) return [];
        const touched = part.matches("[type=radio], [type=checkbox]") ? part.closest("label") : part;
        const { width, height } = touched.getBoundingClientRect();
        const isLarge = Math.min(height, width) >= least - 0.5;
        return isLarge ? [] : [[part.className || part.tagName, touched.textContent.slice(0, 30), width, height]];
    });
}"""


def choose(page: Page, theme: str) -> None:
    """Have the page look so."""
    dark = page.locator("body.dark")
    if (theme == "dark") != bool(dark.count()):
        open_menu(page, "more")
        page.locator(".vx-theme").click()
        close_menus(page)
    expect(dark).to_have_count(int(theme == "dark"))


def open_everything(page: Page) -> None:
    """Open what is folded, all panels at once."""
    page.evaluate("document.querySelectorAll('.vx details').forEach((each) => { each.open = true; })")
    page.evaluate(NEXT_FRAMES)


def check_axe(page: Page, rules: list[str] = RULES) -> None:
    """What axe cannot see through, it calls incomplete, which is no violation."""
    found = Axe().run(page, context="#vv-explorer", options={"runOnly": rules})
    assert found.violations_count == 0, found.generate_report()
    assert len(found.response["passes"]) >= len(rules), "axe looked at nothing"


def check_names_and_contrast(page: Page) -> None:
    """Every text stands out from what is behind it by 4.5:1, as WCAG 2.1 wants it (1.4.3), which axe cannot see."""
    assert page.evaluate(CONTRAST, RATIO) == [] and page.evaluate(UNNAMED) == []


def test_axe_finds_no_violation_and_every_text_stands_out(browser: Browser, registers: SmallApp) -> None:
    with page_at(browser, registers.address, "pins=2,2;cls&layout=two&method=relevance") as page:
        # The themes differ in nothing but colours.
        for theme, rules in (("light", RULES), ("dark", ["color-contrast"])):
            choose(page, theme)
            open_everything(page)
            check_axe(page, rules)
            check_names_and_contrast(page)
        # The dialog of figures, over a comparison, and what hides squares and heads.
        page.evaluate(FOLD)
        expect(open_figure(page)).to_be_visible()
        check_axe(page)
        assert page.evaluate(UNNAMED) == []
        page.keyboard.press("Escape")
        ask(page, "hide")
        page.locator(".vx-canvas").first.click()
        expect(page.locator(".vx-all-on")).to_be_visible()
        check_axe(page)
        check_names_and_contrast(page)
        page.locator(".vx-all-on").click()
        open_everything(page)
        # A map about a token has other controls than one about a class, and the tour is a dialog of its own.
        choose_method(page, "attention")
        open_menu(page, "more")
        page.locator(".vx-guide-open").click()
        expect(page.locator(".vx-guide h2")).to_be_focused()
        open_everything(page)
        check_names_and_contrast(page)


def test_the_first_key_leads_to_the_picture(browser: Browser, registers: SmallApp) -> None:
    with opened_page(browser, registers.address) as page:
        for _ in range(4):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.matches('.vx-skip')"):
                break
        expect(page.locator(".vx-skip")).to_be_focused()
        expect(page.locator(".vx-skip")).to_be_in_viewport()
        page.keyboard.press("Enter")
        expect(canvas(page)).to_be_focused()
        outline = canvas(page).evaluate("canvas => getComputedStyle(canvas).outlineWidth")
        assert outline == "3px"
        for key in ("ArrowRight", "ArrowDown", "Enter"):
            page.keyboard.press(key)
        expect(page.locator(".vx-pin")).to_have_text(["patch (1, 0)"])
        # What is pinned, and every control beside the map, comes after it.
        order = page.evaluate(
            """() => [...document.querySelectorAll(".vx :is(button, input, select, summary, canvas[tabindex])")]
                .filter((part) => part.checkVisibility() && !part.disabled)
                .map((part) => part.className)"""
        )
        assert order.index("vx-canvas") < order.index("vx-pin") < order.index("vx-method")
        assert not page.evaluate("[...document.querySelectorAll('.vx [tabindex]')].some((part) => part.tabIndex > 0)")
        # After a click, the ring would look like a button that is pressed.
        page.locator(".vx-fade").click()
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "none"


@pytest.fixture(scope="module")
def phone(browser: Browser) -> Iterator[BrowserContext]:
    """Of a phone's size, without a mouse."""
    context = new_context(
        browser, bypass_csp=True, has_touch=True, is_mobile=True, viewport={"width": 390, "height": 844}
    )
    yield context
    context.close()


def test_a_finger_finds_every_button(phone: BrowserContext, registers: SmallApp) -> None:
    """On the width of a phone: every control is 44 pixels high, and the picture is on the first screen."""
    with page_at(phone, registers.address, "pins=2,2") as page:
        for method in METHODS:
            choose_method(page, method)
            page.evaluate(FOLD)
            page.evaluate("scrollTo(0, 0)")
            edges = box_of(canvas(page))
            assert edges["y"] + edges["height"] <= 844, method
            open_everything(page)
            assert page.evaluate(SMALL, TARGET) == [], method
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, method


def test_a_tap_asks_a_long_press_pins_and_the_page_still_scrolls(phone: BrowserContext, registers: SmallApp) -> None:
    with page_at(phone, registers.address) as page:
        page.set_viewport_size({"width": 320, "height": 640})
        settle(page)
        shown, edges = canvas(page), box_of(canvas(page))

        def touch(*moves: tuple[str, int, int]) -> dict[str, float]:
            """Have a finger do something on the middles of patches at once; returns where the last is in the window."""
            kind, events = {"pointerType": "touch", "isPrimary": True, "bubbles": True}, []
            for name, row, column in moves:
                place = patch_position(page, registers.analysis, row, column)
                events.append([name, kind | {"clientX": edges["x"] + place["x"], "clientY": edges["y"] + place["y"]}])
            act = "it.dispatchEvent(new PointerEvent(name, event))"
            shown.evaluate(f"(it, events) => {{ for (const [name, event] of events) {act}; }}", events)
            return {"x": events[-1][1]["clientX"], "y": events[-1][1]["clientY"]}

        shown.tap(position=patch_position(page, registers.analysis, 2, 5))
        expect(caption(page)).to_contain_text("Attention from patch (2, 5)")
        expect(page.locator(".vx-pin")).to_have_count(0)
        assert first_view(page)["parameters"] == {"query": [2, 5]}
        touch(("pointerdown", 3, 1))
        expect(page.locator(".vx-pin")).to_have_text(["patch (3, 1)"])
        # The click that ends it asks for nothing.
        touch(("pointerup", 3, 1), ("click", 3, 1))
        assert first_view(page)["parameters"] == {"query": [2, 5]}
        assert shown.evaluate("canvas => getComputedStyle(canvas).touchAction") == "pan-y pinch-zoom"
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        # Some browsers send no click after a long press; the next tap is heard all the same.
        touch(("pointerdown", 3, 1))
        expect(page.locator(".vx-pin")).to_have_count(0)
        touch(("pointerup", 3, 1))
        shown.tap(position=patch_position(page, registers.analysis, 1, 1))
        expect(caption(page)).to_contain_text("Attention from patch (1, 1)")
        # A finger that moves asks on its way, and keeps where it ends.
        # It moves before its press is a long one.
        for row, column, moves in ((2, 2, [("pointerdown", 3, 1)]), (2, 4, [])):
            finger = touch(*moves, ("pointermove", row, column))
            expect(caption(page)).to_contain_text(f"Attention from patch ({row}, {column})")
            # The fingertip hides the square, which is shown above it.
            lens = box_of(page.locator(".vx-lens"))
            assert lens["y"] + lens["height"] < finger["y"]
            assert lens["x"] <= finger["x"] <= lens["x"] + lens["width"]
        touch(("pointerup", 2, 4))
        expect(page.locator(".vx-lens")).to_be_hidden()
        assert first_view(page)["parameters"] == {"query": [2, 4]}


def test_a_finger_that_scrolls_chooses_nothing_and_one_that_paints_hides(
    phone: BrowserContext, registers: SmallApp
) -> None:
    """Real touches, of which the browser makes scrolling."""
    with page_at(phone, registers.address) as page:
        fingers = page.context.new_cdp_session(page)

        def swipe(shown: Locator, across: float, down: float, steps: int = 8) -> None:
            edges = box_of(shown)
            x, y = edges["x"] + edges["width"] / 2, edges["y"] + edges["height"] / 2
            points = [{"x": x + across * step / steps, "y": y + down * step / steps} for step in range(steps + 1)]
            fingers.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": points[:1]})
            for point in points[1:]:
                fingers.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
            fingers.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
            settle(page)

        # Where it hides, it does so up and down as it does across.
        ask(page, "hide")
        swipe(canvas(page), 0, -60)
        hidden = first_view(page)["patches_off"]
        assert len(hidden) > 1 and len({column for _, column in hidden}) == 1 and page.evaluate("scrollY") == 0
        # A stroke that begins on a hidden square hides, too; a tap there shows it again.
        swipe(canvas(page), 120, 0)
        more = first_view(page)["patches_off"]
        assert len(more) > len(hidden) and all(cell in more for cell in hidden)
        row, column = hidden[-1]
        canvas(page).tap(position=patch_position(page, registers.analysis, row, column))
        assert [row, column] not in first_view(page)["patches_off"]
        # Two fingers zoom: what the first one painted before the second came is shown again.
        kept, edges = first_view(page)["patches_off"], box_of(canvas(page))
        for name, fingertips in (("touchStart", [9]), ("touchMove", [60]), ("touchStart", [60, 9]), ("touchEnd", [])):
            points = [{"x": edges["x"] + x, "y": edges["y"] + 9, "id": at} for at, x in enumerate(fingertips)]
            fingers.send("Input.dispatchTouchEvent", {"type": name, "touchPoints": points})
        assert first_view(page)["patches_off"] == kept
        # A quick stroke skips no square between its few events.
        page.locator(".vx-all-on").tap()
        # The browser makes a click of the tap in its own time.
        expect(page.locator(".vx-all-on")).to_be_hidden()
        swipe(canvas(page), 120, 0, 1)
        columns = sorted({column for _, column in first_view(page)["patches_off"]})
        assert len(columns) > 2 and columns == list(range(columns[0], columns[-1] + 1))
        canvas(page).tap(position=patch_position(page, registers.analysis, 0, 0))
        assert [0, 0] in first_view(page)["patches_off"]
        # Last, since the page scrolls on when the finger has left it.
        ask(page, "token")
        before = state(page)
        for shown in (page.locator(".vx-frames"), canvas(page)):
            page.evaluate("scrollTo(0, 0)")
            swipe(shown, 0, -200)
            assert state(page) == before and page.evaluate("scrollY") > 0


# ---- each with one thing alone ----


def check_hidden(page: Page, heads: list[list[int]]) -> None:
    """Squares and heads are hidden, and the answer above the picture is the one without them."""
    settle(page)
    view = first_view(page)
    assert view["patches_off"] and view["heads_off"] == heads
    expect(page.locator(".vx-headline")).to_contain_text("Without 1 square")
    expect(page.locator(".vx-cell")).to_contain_text(re.compile(r"most on the marked square|on the marked squares"))


def check_figure(page: Page, press: Callable[[], None]) -> None:
    name = downloaded(page, press).name
    assert name.endswith(".png")
    expect(page.locator(".vx-paper-said")).to_have_text(f"Saved {name}.")


def test_all_of_it_is_done_by_keys_alone(browser: Browser, registers: SmallApp) -> None:
    with page_at(browser, registers.address) as page:
        keys = page.keyboard

        def press(selector: str, *names: str, back: bool = False) -> None:
            for _ in range(60):
                if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                    break
                keys.press("Shift+Tab" if back else "Tab")
            else:
                pytest.fail(f"{selector} is not reached")
            for name in names:
                keys.press(name)
                settle(page)

        # Why it says so.
        press(".vx-tab", "ArrowRight")
        assert first_view(page)["method"] == "relevance"
        # Without a square and a head.
        press(".vx-tab", "ArrowRight", "ArrowRight")
        press(".vx-canvas", "ArrowRight", "Enter")
        press(".vx-sheet", "ArrowRight", "Enter")
        check_hidden(page, [[2, 0]])
        # What takes it all back goes, and leaves the focus on the picture.
        press(".vx-all-on", "Enter", back=True)
        expect(canvas(page)).to_be_focused()
        press(".vx-tab", "ArrowRight", back=True)
        # Two heads, and two models.
        press(".vx-compare-open", "Enter", back=True)
        press(".vx-other", "ArrowDown")
        heads = [view["parameters"].get("head", "mean") for view in state(page)["views"]]
        assert state(page)["layout"] == "two" and heads[0] != heads[1]
        # On its way, the first map becomes one about a class, which has others, and gives the place back.
        press(".vx-other-kind", *["ArrowDown"] * 4, back=True)
        first, second = state(page)["views"]
        assert first["picture"] != second["picture"]
        press(".vx-other-kind", "ArrowDown")
        # Its list offers others alone.
        own = page.locator(".vx-model-name").inner_text()
        offered = page.locator(".vx-other option").all_inner_texts()
        assert offered[0] == "another model …" and not any(text.startswith(f"{own} ·") for text in offered)
        press(".vx-compare-end", "Enter")
        expect(canvas(page)).to_be_focused()
        # A figure, and a link.
        press("[data-panel=save] > summary", "Enter", back=True)
        press("[data-act=figure]", "Enter")
        press("[data-figure=png2]")
        check_figure(page, lambda: keys.press("Enter"))
        keys.press("Escape")
        expect(page.locator("[data-act=figure]")).to_be_focused()
        press("[data-act=link]", "Enter", back=True)
        expect(page.locator(".vx-code")).to_contain_text("method=attention")
        keys.press("Escape")
        expect(page.locator("[data-panel=save] > summary")).to_be_focused()

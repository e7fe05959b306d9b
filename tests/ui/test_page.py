"""The page as it opens, and that whoever looks at it here notices when it shows something else."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.driver import (
    EXPLORER,
    choose_example,
    choose_method,
    keep_picture,
    notice,
    open_panel,
    opened_page,
    settle,
    state,
    upload,
)
from tests.support.resting import close_resting
from tests.ui.answers import Library, check_page
from tests.ui.explorer.page_driver import small_app
from vitviz import Model
from vitviz.ui.runs import Run

pytestmark = pytest.mark.browser


def test_it_opens_with_an_example_already_analysed(page: Page, library: Library) -> None:
    check_page(page, library)
    keep_picture(page, "light.png")


LOOK = """() => [
    document.body.classList.contains("dark"), document.documentElement.style.colorScheme, scrollY,
    document.querySelectorAll("#vv-explorer details[open]").length, document.activeElement === document.body,
    document.querySelector(".vx-search").value, document.querySelector(".vx-notice").hidden,
]"""


@pytest.mark.long
def test_a_page_that_another_test_left_is_as_if_it_were_new(browser: Browser, address: str, library: Library) -> None:
    """In all that tests share, see tests/support/resting.py: the explorer begins anew."""
    close_resting(address)
    with opened_page(browser, address) as first:
        new, found = state(first), first.evaluate(LOOK)
        open_panel(first, "switches")
        first.locator(".vx-theme").click()
        first.locator(".vx-models > summary").click()
        first.locator(".vx-search").fill("dino")
        upload(first, {"name": "none.png", "mimeType": "image/png", "buffer": b""})
        expect(notice(first)).to_contain_text("an empty file")
        first.keyboard.press("Escape")
        choose_example(first, "rocket.jpg")
        choose_method(first, "rollout")
        first.set_viewport_size({"width": 600, "height": 500})
        first.evaluate("scrollTo(0, 300)")
        assert state(first) != new and first.evaluate(LOOK) != found
        left, before = first.evaluate_handle(f"{EXPLORER}.store"), state(first)
    with opened_page(browser, address) as again:
        assert again is first and (state(again), again.evaluate(LOOK)) == (new, found)
        check_page(again, library)
        # The explorer of before answers to no key any more.
        again.keyboard.press("3")
        settle(again)
        assert state(again)["views"][0]["parameters"] == {"head": 3}
        assert left.evaluate("store => store.state") == before
        check_page(again, library)


# Each changes one thing that the page shows, and gives what takes it back.
SET = """const set = (selector, name, value) => {
    const part = document.querySelector(`#vv-explorer .vx ${selector}`), before = part[name];
    part[name] = value(before);
    return () => { part[name] = before; };
}"""
CHANGES = (
    "set('.vx-status', 'textContent', (before) => before + '.')",
    "set('.vx-high', 'textContent', () => '0.9')",
    "set('.vx-chip span', 'textContent', () => '0.99')",
    "set('.vx-method', 'value', () => 'legrad')",
    "set('.vx-parameter input[type=range]', 'value', () => 2)",
    "set('.vx-fit', 'value', () => 'crop')",
    "set('.vx-predictions output', 'textContent', () => '7.1%')",
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


def is_over(run: Run) -> bool:
    return run.reply is not None


def test_what_takes_long_is_seen_and_ends_when_its_page_is_closed(browser: Browser, bundled: Model) -> None:
    with small_app(bundled) as app:
        with opened_page(browser, app.address) as page:
            open_panel(page, "compare")
            page.locator(".vx-compare-start").click()
            busy = page.locator(".vx-busy")
            expect(busy).to_be_visible()
            expect(busy).to_have_css("opacity", "1")
            expect(busy.get_by_role("button", name="Stop")).to_be_visible()
            assert [is_over(run) for run in app.runs._runs.values()].count(False) == 1
        deadline = time.monotonic() + 60
        while not all(map(is_over, app.runs._runs.values())) and time.monotonic() < deadline:
            time.sleep(0.05)
        [last] = [run.reply for run in app.runs._runs.values() if run.reply and run.reply["kind"] == "compare"]
        assert last.get("stopped") is True

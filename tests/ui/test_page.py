"""The page as it opens, and that whoever looks at it here notices when it shows something else."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.driver import ARTEFACTS, EXPLORER
from tests.ui.answers import Library, check_page

pytestmark = pytest.mark.browser


def test_it_opens_with_an_example_already_analysed(page: Page, library: Library) -> None:
    check_page(page, library)
    ARTEFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTEFACTS / "light.png", full_page=True)


# Each changes one thing that the page shows, and gives what takes it back.
SET = """const set = (selector, name, value) => {
    const part = document.querySelector(`#vv-explorer .vx ${selector}`), before = part[name];
    part[name] = value(before);
    return () => { part[name] = before; };
}"""
CHANGES = (
    "set('.vx-status', 'textContent', (before) => before + '.')",
    "set('.vx-high', 'textContent', () => '0.9')",
    "set('.vx-chip span', 'textContent', () => '99.0%')",
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


def test_something_else_is_noticed(page: Page, library: Library) -> None:
    for change in CHANGES:
        check_page(page, library)
        page.evaluate(f"() => {{ {SET}; window.takeBack = {change}; }}")
        with pytest.raises(AssertionError):
            check_page(page, library)
        page.evaluate("() => window.takeBack()")
    check_page(page, library)

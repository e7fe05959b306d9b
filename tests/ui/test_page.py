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


@pytest.mark.parametrize(
    "change",
    [
        "root.querySelector('.vx-status').textContent += '.'",
        "root.querySelector('.vx-high').textContent = '0.9'",
        "root.querySelector('.vx-chip span').textContent = '99.0%'",
        "root.querySelector('.vx-canvas').getContext('2d').fillRect(0, 0, 200, 200)",
        "root.querySelector('.vx-method').value = 'legrad'",
        "root.querySelector('.vx-parameter input[type=range]').value = 2",
        "root.querySelector('.vx-fit').value = 'crop'",
        "root.querySelector('.vx-predictions output').textContent = '7.1%'",
        "root.querySelector('.vx-predictions button').setAttribute('aria-pressed', 'true')",
        "history.replaceState(history.state, '', location.href + '&resolution=48')",
        "const [pane] = explorer.panes, shown = pane.values(); pane.values = () => shown.map((value) => 1.02 * value)",
    ],
)
def test_something_else_is_noticed(page: Page, library: Library, change: str) -> None:
    page.evaluate(
        f"() => {{ const root = document.querySelector('#vv-explorer .vx'), explorer = {EXPLORER}; {change}; }}"
    )
    with pytest.raises(AssertionError):
        check_page(page, library)

"""The page of a module of another package: every question, without a network of vitviz's own."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

import vitviz
from tests.driver import EXPLORER, ask, click_cell, click_patch, first_view, opened_page, page_at, settle
from tests.support.example import EXAMPLE
from tests.support.modules import MeanViT, load_own
from tests.ui.answers import Library, check_page
from tests.ui.explorer.page_driver import small_app

pytestmark = pytest.mark.browser


def test_a_module_that_reads_patches_elsewhere_says_that_none_can_be_hidden(browser: Browser) -> None:
    """It keeps its heads, and the search for squares that change its answer does not begin."""
    model = load_own(MeanViT("written out"), engine="module")
    library, analysis = Library(model), vitviz.analyze(EXAMPLE, model)
    reason = model.network.why_no_hiding
    assert reason is not None and "so it also reads them outside attention" in reason
    with small_app(model) as app:
        with opened_page(browser, app.address) as page:
            ask(page, "hide")
            expect(page.locator(".vx-lead")).to_contain_text(reason)
            click_patch(page, analysis, 1, 2)
            click_cell(page, analysis, 1, 3)
            view = first_view(page)
            assert (view["patches_off"], view["heads_off"]) == ([], [[1, 3]])
            ask(page, "token")
            check_page(page, library)
            assert page.evaluate(f"{EXPLORER}.panes[0].facts.flips") is None
            # The tour says so too, in place of covering.
            page.evaluate(f"{EXPLORER}.store.patch({{ panel: 'guide', guide: 2 }})")
            expect(page.locator(".vx-guide-text")).to_contain_text(f"Squares cannot be covered here ({reason}).")
            settle(page)
            assert first_view(page)["patches_off"] == []
        with page_at(browser, app.address, "patches-off=1.2") as page:
            settle(page)
            assert first_view(page)["patches_off"] == []

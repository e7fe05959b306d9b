"""A model without a CLS token reads the mean of its patches, and so does the page until a token is chosen."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

import vitviz
from tests.driver import choose_method, click_patch, first_view, opened_page
from tests.support.example import EXAMPLE
from tests.ui.answers import Library, check_page
from tests.ui.explorer.page_driver import made, small_app

pytestmark = pytest.mark.browser


def test_the_mean_patch_is_asked_until_a_token_is_chosen(browser: Browser) -> None:
    model = made(32, 32, 2, 8, cls_token=False, pooling="mean")
    library, analysis = Library(model), vitviz.analyze(EXAMPLE, model)
    with small_app(model) as app, opened_page(browser, app.address) as page:
        mean = page.locator(".vx-chip", has_text="mean patch").first
        for method in ("attention", "rollout"):
            choose_method(page, method)
            expect(mean).to_have_attribute("aria-pressed", "true")
            check_page(page, library)
        click_patch(page, analysis, 1, 2)
        assert first_view(page)["parameters"]["query"] == [1, 2]
        expect(mean).to_have_attribute("aria-pressed", "false")
        check_page(page, library)
        mean.click()
        check_page(page, library)
        page.get_by_role("button", name="more", exact=True).click()
        page.locator(".vx-chip", has_text="register 1").first.click()
        check_page(page, library)

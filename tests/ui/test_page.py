"""The page as it opens."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.ui.answers import Library, check_page

pytestmark = pytest.mark.browser


def test_it_opens_with_an_example_already_analysed(page: Page, library: Library) -> None:
    check_page(page, library)

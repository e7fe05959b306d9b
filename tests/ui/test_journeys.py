"""Random journeys through the page end as the library says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.long_runs import SEED, share_of
from tests.ui.answers import Library
from tests.ui.journeys import journeys_app, load, travel

pytestmark = [pytest.mark.browser, pytest.mark.process]


@pytest.fixture(scope="module")
def app() -> Iterator[tuple[str, Library]]:
    with journeys_app() as found:
        yield found


def test_two_journeys_end_as_the_library_says(browser: Browser, app: tuple[str, Library]) -> None:
    assert travel(browser, *app, range(SEED, SEED + 2)) == []


@pytest.mark.long
def test_two_hundred_journeys_end_so_while_others_take_the_processors(
    browser: Browser, app: tuple[str, Library]
) -> None:
    with load():
        assert travel(browser, *app, range(SEED, SEED + share_of(200))) == []

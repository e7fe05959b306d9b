"""Random journeys through the page end as the library says."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser

from tests.support.api_calls import PLAIN
from tests.support.long_runs import SEED, share_of
from tests.ui.answers import Library
from tests.ui.journeys import journeys_app, travel
from vitviz.ui.server.settings import ServerSettings

pytestmark = [pytest.mark.browser, pytest.mark.process]


@pytest.fixture(scope="module")
def app() -> Iterator[tuple[str, Library]]:
    with journeys_app() as found:
        yield found


def test_two_journeys_end_as_the_library_says(browser: Browser, app: tuple[str, Library]) -> None:
    assert travel(browser, *app, range(SEED, SEED + 2)) == []


def test_the_page_works_whole_without_the_api(browser: Browser) -> None:
    with journeys_app(ServerSettings(api=False)) as (address, library):
        assert travel(browser, address, library, range(SEED, SEED + 1)) == []
        for path in ("config", "gradio_api/info", "gradio_api/queue/data?session_hash=a", "gradio_api/mcp/schema"):
            assert httpx.get(f"{address}/{path}", **PLAIN).status_code == 404
        for path in ("queue/join", "call/models", "call/v2/analyze", "upload", "cancel", "mcp/"):
            assert httpx.post(f"{address}/gradio_api/{path}", json={}, **PLAIN).status_code == 404


@pytest.mark.long
def test_two_hundred_journeys_end_so(browser: Browser, app: tuple[str, Library]) -> None:
    """Other tests take the processors meanwhile."""
    assert travel(browser, *app, range(SEED, SEED + share_of(200))) == []

"""What several tests of the explorer share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, Page

from tests.driver import (
    opened_page,
)
from tests.ui.explorer.page_driver import (
    SHAPES,
    Apps,
    SmallApp,
    made,
    small_app,
)


@pytest.fixture(scope="package")
def apps() -> Iterator[Apps]:
    """Apps of small networks by the names of their shapes, each started when it is first asked for."""
    running: dict[str, SmallApp] = {}
    with ExitStack() as stack:

        def app(name: str) -> SmallApp:
            if name not in running:
                running[name] = stack.enter_context(small_app(made(*SHAPES[name])))
            return running[name]

        yield app


@pytest.fixture
def cifar(apps: Apps) -> SmallApp:
    return apps("cifar")


@pytest.fixture
def registers(apps: Apps) -> SmallApp:
    return apps("registers")


@pytest.fixture
def cifar_page(browser: Browser, cifar: SmallApp) -> Iterator[Page]:
    with opened_page(browser, cifar.address) as found:
        yield found


@pytest.fixture
def registers_page(browser: Browser, registers: SmallApp) -> Iterator[Page]:
    with opened_page(browser, registers.address) as found:
        yield found

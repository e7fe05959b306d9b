"""The app that the tests of the server send requests to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server_client import RunningApp, running_here
from vitviz import Model


@pytest.fixture(scope="module")
def served(bundled: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with (
        pytest.MonkeyPatch.context() as environment,
        running_here(bundled, tmp_path_factory.mktemp("served"), environment) as found,
    ):
        yield found

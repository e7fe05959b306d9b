"""A hub of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.downloads import CONFIG, CONTENT, NAME, WEIGHTS
from tests.hub_server import HubServer, close_session


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture(autouse=True)
def home(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and no long waits."""
    server.use(monkeypatch, tmp_path / "home")
    yield tmp_path / "home"
    close_session()


@pytest.fixture
def commit(server: HubServer) -> str:
    """The usual repository."""
    return server.add(NAME, {"config.json": CONFIG, WEIGHTS: CONTENT, "README.md": b"# ViT"}, lfs=(WEIGHTS,))

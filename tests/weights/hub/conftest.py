"""A hub of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.downloads import CONFIG, CONTENT, NAME, WEIGHTS
from tests.hub_server import HubServer


@pytest.fixture(autouse=True)
def home(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and many chunks in a small file."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 50_000)
    return tmp_path / "home"


@pytest.fixture
def commit(server: HubServer) -> str:
    """The usual repository."""
    return server.add(NAME, {"config.json": CONFIG, WEIGHTS: CONTENT, "README.md": b"# ViT"}, lfs=(WEIGHTS,))

"""Chunks so small that a small trace has several."""

from __future__ import annotations

import pytest

from vitviz.attention import softmax


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two query tokens at a time in double precision, four in single."""
    monkeypatch.setattr(softmax, "CHUNK_BYTES", 2 * 3 * 11 * 8)

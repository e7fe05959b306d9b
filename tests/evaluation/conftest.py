"""Pictures on which methods are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pictures import photo


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five pictures at two depths, and a file that is no picture."""
    for number in range(5):
        place = tmp_path / "pictures" / f"class {number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        photo(number, 24, 16).save(place / f"{number}.png")
    (tmp_path / "pictures" / "notes.txt").write_text("no picture")
    return tmp_path / "pictures"

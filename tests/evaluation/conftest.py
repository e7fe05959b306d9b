"""Pictures on which methods are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pictures import write_photos


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five pictures at two depths, and a file that is no picture."""
    names = [f"class {number % 2}/{number}.png" for number in range(5)]
    return write_photos(tmp_path / "pictures", names, [(24, 16)], ["notes.txt"])

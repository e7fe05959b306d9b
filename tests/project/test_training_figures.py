"""The figures of docs/training.md can be drawn from any run."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from benchmarks.training_figures import CELL_WIDTH, GAP, evenly_spaced, main
from tests.support.training import SMALL, write_folder
from vitviz.training import loop

pytestmark = pytest.mark.slow


def test_a_run_has_both_figures(tmp_path: Path) -> None:
    loop.train(write_folder(tmp_path / "images"), tmp_path / "run", SMALL, snapshots=5)
    main(["curves", str(tmp_path / "run"), "--output", str(tmp_path / "curves.svg")])
    assert (tmp_path / "curves.svg").read_text().count("<path") > 20
    main(["forming", str(tmp_path / "run"), "--output", str(tmp_path / "forming.png")])
    with Image.open(tmp_path / "forming.png") as picture:
        # Four states were kept.
        assert picture.width == GAP + 4 * (CELL_WIDTH + GAP)
        assert len(picture.getcolors(2**20) or ()) > 1000


def test_the_first_and_the_last_state_are_chosen() -> None:
    assert evenly_spaced(range(12)) == [0, 2, 4, 7, 9, 11]
    assert evenly_spaced([3, 5]) == [3, 5]

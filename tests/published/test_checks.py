"""The checks of published checkpoints, on small ones with random weights, and the page about them."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from tests.published.checks import Figures, check
from tests.published.networks import NETWORKS, download
from tests.published.table import COLUMNS, HEADER, NOT_RUN, PAGE, rows, updated
from tests.support.package_checkpoints import EXACT, write
from vitviz.weights.verify import Comparison

pytestmark = pytest.mark.parity


DAY = date(2026, 1, 2)


@pytest.mark.parametrize("package", EXACT)
def test_a_checkpoint_of_every_package_has_its_numbers(package: str, tmp_path: Path) -> None:
    found = check(write(package, tmp_path))
    assert found.wrong == [] and f"of {package} " in found.reference
    assert set(found.comparisons) == set(COLUMNS) - {"kept numbers"}


# The page.

EXACT_FIGURES = Figures("Model of package 1", {"pixels": Comparison("pixels", 0.0, 1e-5, True)})
WRONG_FIGURES = Figures("Model of package 1", {"output": Comparison("output", 0.5, 1e-5, False)})


def page(*lines: str) -> str:
    return "\n".join(("before", "<!-- published -->", *HEADER, *lines, "<!-- /published -->", "after\n"))


def test_a_row_is_written_and_all_others_stay() -> None:
    first = updated(page(), {"mine": EXACT_FIGURES, "openai/clip-vit-base-patch16": WRONG_FIGURES}, DAY)
    found = rows(first)
    assert found["mine"] == ["`mine`", "", "2026-01-02", "Model of package 1", "0.0e+00", "–", "–", "–", "–"]
    assert found["openai/clip-vit-base-patch16"][5] == "**5.0e-01, allowed 1.0e-05**"
    assert first.startswith("before\n") and first.endswith("\nafter\n")
    assert list(found) == ["mine", *NETWORKS]
    second = rows(updated(first, {"facebook/dinov2-base": EXACT_FIGURES}, DAY))
    assert second["mine"] == found["mine"] and second["facebook/dinov2-base"][2] == "2026-01-02"
    assert [cells[2] for cells in second.values()].count(NOT_RUN) == len(NETWORKS) - 2


def test_the_page_has_every_network_with_its_command_and_says_what_was_not_run() -> None:
    text = PAGE.read_text()
    assert "\n".join(HEADER) in text
    found = rows(text)
    assert len(NETWORKS) == 20 and set(found) > set(NETWORKS)
    for name, title in NETWORKS.items():
        assert found[name][1] == title
    assert f"    {download('NAME')}\n" in text
    for cells in found.values():
        if cells[2] == NOT_RUN:
            assert set(cells[3:]) == {""}
        else:
            assert date.fromisoformat(cells[2]) and all(cells[3:8])

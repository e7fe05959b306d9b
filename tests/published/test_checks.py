"""The checks of published checkpoints, on small ones with random weights, and the page about them."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.published.checks import OUTPUTS, REFERENCE, VARIABLE, Figures, check, checkpoints
from tests.published.networks import NETWORKS, download
from tests.published.table import COLUMNS, HEADER, NOT_RUN, PAGE, rows, updated
from tests.support.example import ROOT
from tests.support.package_checkpoints import EXACT, write
from tests.support.reading import read_any
from vitviz.errors.kinds import CheckpointError
from vitviz.models.vit import VisionTransformer
from vitviz.weights.verify import Comparison

pytestmark = pytest.mark.parity

PHOTO = ROOT / "assets" / "coffee.jpg"
DAY = date(2026, 1, 2)


@pytest.mark.parametrize("package", EXACT)
def test_a_checkpoint_of_every_package_has_its_numbers(package: str, tmp_path: Path) -> None:
    found = check(write(package, tmp_path))
    assert found.wrong == [] and f"of {package} " in found.reference
    assert set(found.comparisons) == set(COLUMNS) - {"kept numbers"}


def test_weights_that_do_not_sum_to_one_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = VisionTransformer.forward

    def doubled(network: VisionTransformer, pixels: torch.Tensor, need_weights: bool = False) -> Any:
        found = forward(network, pixels, need_weights)
        return (found[0], [2 * layer for layer in found[1]]) if need_weights else found

    monkeypatch.setattr(VisionTransformer, "forward", doubled)
    figures = check(write("timm", tmp_path), [PHOTO])
    assert {kind for kind, each in figures.comparisons.items() if not each.exact} == {"attention", "sums"}
    assert len(figures.wrong) == 2


# Numbers of another program.


def keep(folder: Path, **arrays: torch.Tensor) -> None:
    np.savez(folder / REFERENCE, **{name: tensor.numpy() for name, tensor in arrays.items()})


@pytest.mark.parametrize("name", OUTPUTS)
def test_numbers_beside_a_checkpoint_are_compared(name: str, tmp_path: Path) -> None:
    folder, pixels = write("timm", tmp_path), torch.randn(2, 3, 32, 32)
    network = read_any(folder).model.network
    with torch.inference_mode():
        right = OUTPUTS[name](network, pixels)
    keep(folder, pixels=pixels, **{name: right})
    assert check(folder, [PHOTO]).wrong == []
    keep(folder, pixels=pixels, **{name: right + 1e-3})
    assert [sentence.split(" differs")[0] for sentence in check(folder, [PHOTO]).wrong] == [f"{name} of {REFERENCE}"]


@pytest.mark.parametrize("arrays", [("pixels",), ("logits",), ("pixels", "logits", "hidden")])
def test_stored_numbers_need_pixels_and_one_output(arrays: tuple[str, ...], tmp_path: Path) -> None:
    folder = write("timm", tmp_path)
    keep(folder, **dict.fromkeys(arrays, torch.zeros(1)))
    with pytest.raises(CheckpointError, match="expected 'pixels' and one of 'logits', 'features', 'hidden'"):
        check(folder, [PHOTO])


def test_a_folder_without_a_checkpoint_is_an_error_and_no_skip(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "gone"):
        with pytest.raises(FileNotFoundError, match=f"{VARIABLE} = .*: no published checkpoint found; expected"):
            checkpoints(folder)


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

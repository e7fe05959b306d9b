"""Architectures and random configurations have the numbers that were kept of them."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from tests.parity.random_draws import Draw
from tests.parity.references import FILE, MAPS, ROWS, numbers_of_draw, numbers_of_row
from tests.support.long_runs import one_in

pytestmark = pytest.mark.parity

TOLERANCE = 2e-5
# What is not compared, since it means something else.
OTHERS: dict[str, tuple[str, ...]] = {
    # Their packages pool nothing, so that no map can be about features.
    **dict.fromkeys(("transformers ViTMAE (encoder)", "transformers ViTMSN"), ("relevance", "legrad")),
    **dict.fromkeys(("transformers I-JEPA", "transformers GIT", "draw 108", "draw 109"), ("relevance", "legrad")),
    # SigLIP of a single patch, where the pooling looks like a layer.
    **dict.fromkeys(map("draw {}".format, range(135, 139)), ("relevance", "legrad")),
    # The kept features are projected; those of its tower alone are not.
    "transformers CLIPSeg": ("output", "relevance", "legrad"),
}


@cache
def kept() -> dict[str, np.ndarray]:
    with np.load(FILE) as file:
        return dict(file)


DRAWN = json.loads(str(kept()["draws"]))


def expect_as_kept(entry: str, found: dict[str, np.ndarray]) -> None:
    assert found.keys() == {"attention", "output", *MAPS}
    for name, value in found.items():
        if name in OTHERS.get(entry, ()):
            continue
        expected = kept()[f"{entry}|{name}"]
        if name == "output" and value.ndim == 2:
            # Tokens, of which the CLS token or the mean is kept.
            value = min(value[0], value.mean(0), key=lambda each: float(np.abs(each - expected).max()))
        bound = TOLERANCE * max(1, np.abs(expected).max(initial=0))
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=bound, err_msg=name)


@pytest.mark.parametrize("row", one_in(4, {row: row for row in ROWS}))
def test_an_architecture(row: str) -> None:
    expect_as_kept(row, numbers_of_row(ROWS[row]))


@pytest.mark.parametrize("index", one_in(10, {str(index): index for index in range(len(DRAWN))}))
def test_a_random_configuration(index: int) -> None:
    draw = dict(DRAWN[index])
    expect_as_kept(f"draw {index}", numbers_of_draw(draw.pop("package"), Draw(**draw)))


def test_all_are_kept() -> None:
    entries = [*ROWS, *(f"draw {index}" for index in range(len(DRAWN)))]
    assert len(DRAWN) == 200 and OTHERS.keys() < set(entries)
    assert kept().keys() == {
        "draws",
        *(f"{entry}|{name}" for entry in entries for name in ("attention", "output", *MAPS)),
    }
    # An empty map is one that the model cannot have.
    assert sum(value.size == 0 for value in kept().values()) < 10

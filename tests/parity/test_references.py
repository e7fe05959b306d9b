"""Architectures and random configurations have the numbers that were kept of them."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from tests.parity.random_draws import Draw
from tests.parity.references import DRAWS, FILE, MAPS, ROWS, numbers_of_draw, numbers_of_row
from tests.support.long_runs import one_in

pytestmark = pytest.mark.parity

TOLERANCE = 2e-5


@cache
def kept() -> dict[str, np.ndarray]:
    with np.load(FILE) as file:
        return dict(file)


DRAWN = json.loads(str(kept()["draws"]))


def expect_as_kept(entry: str, found: dict[str, np.ndarray]) -> None:
    names = {name.partition("|")[2] for name in kept() if name.startswith(f"{entry}|")}
    assert found.keys() == names
    for name, value in found.items():
        expected = kept()[f"{entry}|{name}"]
        np.testing.assert_allclose(
            value, expected, rtol=1e-4, atol=TOLERANCE * max(1, np.abs(expected).max()), err_msg=name
        )


@pytest.mark.parametrize("row", one_in(4, {row: row for row in ROWS}))
def test_an_architecture(row: str) -> None:
    expect_as_kept(row, numbers_of_row(ROWS[row]))


@pytest.mark.parametrize("index", one_in(10, {str(index): index for index in range(len(DRAWN))}))
def test_a_random_configuration(index: int) -> None:
    draw = dict(DRAWN[index])
    expect_as_kept(f"draw {index}", numbers_of_draw(draw.pop("package"), Draw(**draw)))


def test_all_are_kept() -> None:
    names = [name.partition("|")[2] for name in kept()]
    assert len(DRAWN) == sum(DRAWS.values()) and names.count("attention") == len(ROWS) + len(DRAWN)
    # An empty map is one that the model cannot have.
    for each in ("output", *MAPS):
        assert names.count(each) == len(ROWS) + len(DRAWN)
    assert sum(value.size == 0 for value in kept().values()) < 10
    assert FILE.stat().st_size < 3_000_000

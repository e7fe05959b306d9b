"""The memory of a batch does not grow with its pictures."""

from __future__ import annotations

import pytest

from benchmarks.growth import peak_of


@pytest.mark.process
def test_the_peak_is_that_of_fewer_pictures() -> None:
    """What an analysis keeps of each of the 180 more would be some 600 KB, a quarter as much again."""
    few, many = peak_of(60), peak_of(240)
    assert few.nbytes > 100 * 2**20 and many.nbytes < 1.1 * few.nbytes
    with pytest.raises(RuntimeError, match="expected a multiple of the patch"):
        peak_of(1, resolution=7)

"""The scale that is chosen for a map, on maps of a published network and on synthetic ones.

``vit_s14_maps.npz`` is described in ``tests/data/README.md``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.pairs import every_pair
from vitviz.visualization import SCALES, fit
from vitviz.visualization.scales import AUTOMATIC

REAL = dict(np.load(Path(__file__).parents[1] / "data" / "vit_s14_maps.npz"))


def median_place(values: np.ndarray, name: str | None = None) -> float:
    return float(np.median(fit(name, [values]).place(values).clip(0, 1)))


@pytest.mark.parametrize("key", [key for key in REAL if key.startswith("rollout")])
def test_half_of_a_trained_networks_rollout_can_be_told_from_black_and_from_white(key: str) -> None:
    assert 0.1 <= median_place(REAL[key]) <= 0.6
    # And could not be before.
    assert median_place(REAL[key], "linear") < 0.03


@pytest.mark.parametrize("key", [key for key in REAL if key.startswith("cls")])
def test_a_map_that_is_readable_stays_linear(key: str) -> None:
    scale = fit(None, [REAL[key]])
    assert scale.scale is SCALES["linear"] and scale.automatic


def background(spread: float, seed: int = 0) -> np.ndarray:
    return 0.002 * np.exp(spread * np.random.default_rng(seed).standard_normal((16, 16)))


@every_pair(patches=[1, 2, 4, 9, 25], spread=[0, 0.1, 0.2], seed=range(3))
def test_an_object_on_a_plain_background_is_not_blown_up_into_noise(patches: int, spread: float, seed: int) -> None:
    values = background(spread, seed).ravel()
    values[100 : 100 + patches] = 0.1
    scale = fit(None, [values])
    assert scale.scale is SCALES["linear"]
    assert np.delete(scale.place(values), slice(100, 100 + patches)).max() < 0.1


def test_a_sink_over_moderate_differences_makes_the_scale_robust_and_over_large_ones_logarithmic() -> None:
    moderate, large = np.linspace(1, 5, 255), np.geomspace(1e-3, 1, 255)
    assert fit(None, [np.append(moderate, 200)]).scale is SCALES["robust"]
    assert fit(None, [np.append(large, 200)]).scale is SCALES["log"]


@pytest.mark.parametrize("sinks", [4, 6, 10])
def test_the_number_of_equal_sinks_decides_together_with_what_they_hold(sinks: int) -> None:
    others = np.linspace(1, 5, 256 - sinks)
    for height, expected in ((40, "robust"), (4000, "linear")):
        assert fit(None, [np.append(others, [height] * sinks)]).scale is SCALES[expected]


def test_the_rule_in_words_has_the_numbers_of_the_rule() -> None:
    from vitviz.visualization import scales

    assert scales.READABLE_MEDIAN == 0.1 and "the lowest tenth" in AUTOMATIC
    assert f"between {scales.READABLE_MEDIAN:.0%}".rstrip("%") in AUTOMATIC
    assert f"and {100 * scales.BRIGHT_MEDIAN:g} %" in AUTOMATIC
    assert scales.MIN_SUM_SHARE == 0.5 and "more than half of the sum" in AUTOMATIC
    for peak, low in ((scales.ONE_PEAK, "2nd"), (scales.SEVERAL_PEAKS, "5th")):
        assert f"more than {peak.ratio:g} times the {peak.percentile:g}th percentile" in AUTOMATIC
        few, most = peak.spread
        assert f"the {most:g}th more than {scales.DIFFERENT_RATIO:g} times the {low}" in AUTOMATIC
        assert low.startswith(f"{few:g}")

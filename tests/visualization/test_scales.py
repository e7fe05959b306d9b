"""Scales: the places of values between the ends of the colours, the scale that is chosen for a map, and its caption.

``vit_s14_maps.npz`` has maps of a published network, see ``tests/data/README.md``.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.support.heatmaps import heatmap_over
from vitviz import Heatmap, MethodError, Style
from vitviz.visualization import SCALES, fit
from vitviz.visualization.scales import LOG_FLOOR
from vitviz.visualization.sheets import GAP, LEFT, TOP, Sheet

REAL = dict(np.load(Path(__file__).parents[1] / "data" / "vit_s14_maps.npz"))
every_scale = pytest.mark.parametrize("name", SCALES)
some_values = st.lists(st.floats(0, 1, width=32).map(lambda value: float(value)), min_size=1, max_size=60)


def heatmap(values: Any, signed: bool = False) -> Heatmap:
    values = torch.as_tensor(values, dtype=torch.float64)
    image = Image.new("RGB", (4 * values.shape[1], 4 * values.shape[0]))
    return heatmap_over(values, image, dtype=torch.float64, signed=signed)


# Where values lie.


def slow_places(name: str, values: Sequence[float], percentiles: tuple[float, float]) -> list[float]:
    """The places of values, computed one by one."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    if name == "robust":
        last = len(ordered) - 1
        low = next(each for at, each in enumerate(ordered) if 100 * at >= percentiles[0] * last)
        high = max(each for at, each in enumerate(ordered) if 100 * at <= percentiles[1] * last)
        # With two patches, both lie outside.
        low = min(low, high)
    if name == "zero":
        low = 0.0
    if name == "log":
        positive = [each for each in ordered if each > 0]
        if not positive:
            return [0.0] * len(values)
        low = max(positive[0] / (2 if len(positive) < len(ordered) else 1), LOG_FLOOR * high)
        if low == high:
            return [0.0] * len(values)
        return [math.log(max(each, low) / low) / math.log(high / low) for each in values]
    if name == "rank":
        count = bisect.bisect_left(ordered, high)
        return [sum(value < each for value in values) / max(1, count) for each in values]
    if high == low:
        return [1.0 if each > high else 0.0 for each in values]
    return [min(1.0, max(0.0, (each - low) / (high - low))) for each in values]


@every_scale
@settings(max_examples=25, deadline=None)
@given(values=some_values, percentiles=st.sampled_from([(2.0, 98.0), (0.0, 100.0), (25.0, 75.0)]))
def test_places_are_those_of_a_second_implementation(
    name: str, values: list[float], percentiles: tuple[float, float]
) -> None:
    # Values in single precision, as the scale stores them.
    values = [each if each > 1e-30 else 0.0 for each in values]
    found = fit(name, [values], percentiles=percentiles).place(values)
    np.testing.assert_allclose(found.clip(0, 1), slow_places(name, values, percentiles), atol=1e-9)


@every_scale
@pytest.mark.parametrize("value", [0.0, 0.25, -1.0])
def test_a_constant_map_has_one_colour(name: str, value: float) -> None:
    places = fit(name, [[value] * 4]).place([value] * 4).clip(0, 1)
    assert set(places) == {1.0 if name == "zero" and value > 0 else 0.0}


# Explicit ends of a style.


@pytest.mark.parametrize("ends", [{"low": 0.002}, {"high": 0.005}, {"low": 0.002, "high": 0.005}])
def test_given_ends_are_those_of_every_scale(ends: dict[str, float]) -> None:
    values = REAL["rollout_mean_coffee"]
    for name in SCALES:
        scale, own = fit(name, [values], **ends), fit(name, [values])
        assert scale.ends == (min(ends.get("low", own.low), ends.get("high", own.high)), ends.get("high", own.high))
        places = scale.place([scale.low - 1e-4, scale.low, scale.high + 1e-4]).clip(0, 1)
        assert places[0] == places[1] == 0 and places[2] == 1


def test_an_explicit_end_makes_the_scale_linear_unless_another_is_chosen() -> None:
    values = REAL["rollout_max_coffee"]
    assert fit(None, [values]).scale is SCALES["log"]
    assert fit(None, [values], high=0.1).scale is fit(None, [values], low=0).scale is SCALES["linear"]
    assert fit("log", [values], low=1e-3).ends[0] == 1e-3 and fit(None, [values], low=5).ends == (5, 5)
    with pytest.raises(MethodError, match="no values, or NaN or infinity among them"):
        fit("linear", [[np.nan, 1.0]])
    # A link may hold any ends.
    assert np.isfinite(fit("log", [values], low=1e-300, high=1e30).place(values)).all()


# Signed maps.


@every_scale
def test_a_signed_map_is_symmetric_about_zero(name: str) -> None:
    values = np.concatenate([-REAL["rollout_mean_coffee"].ravel()[:100], REAL["rollout_mean_chelsea"].ravel()])
    scale = fit(name, [values], signed=True)
    low, high = scale.ends
    assert low == -high
    np.testing.assert_allclose(scale.place(-values), 1 - scale.place(values), atol=1e-12)
    assert scale.place([0.0]).tolist() == [0.5]
    assert scale.place([low, high]).tolist() == [0, 1]
    assert fit(name, [[0.0, 0.0]], signed=True).place([0.0]).tolist() == [0.5]
    assert fit(name, [values], low=0, signed=True).ends == fit(name, [values], signed=True).ends


@every_scale
def test_maps_on_one_scale_have_equal_colours_for_equal_values(name: str) -> None:
    first, second = REAL["rollout_mean_coffee"], 3 * REAL["rollout_mean_chelsea"]
    scale = fit(name, [first, second])
    together = scale.place(np.concatenate([first, second]))
    np.testing.assert_array_equal(together, np.concatenate([scale.place(first), scale.place(second)]))
    np.testing.assert_array_equal(together, fit(name, [np.concatenate([first, second])]).place([*first, *second]))
    assert together.max() == 1


@every_scale
@pytest.mark.parametrize("ends", [{}, {"high": 0.004}, {"low": 0.001}, {"low": 0.0, "high": 0.02}], ids=str)
def test_a_sheet_has_one_scale_or_one_for_each_cell(name: str, ends: dict[str, float]) -> None:
    maps = [heatmap(REAL["rollout_mean_coffee"]), heatmap(REAL["rollout_mean_chelsea"] / 4)]
    row = [replace(each, image=maps[0].image, geometry=maps[0].geometry) for each in maps]
    style = Style("gray", 1.0, scale=name, **ends)
    for shared in (False, True):
        picture = Sheet([row]).picture(style, shared_scale=shared, cell=64)
        for column, each in enumerate(row):
            scale = fit(name, [heatmap.values for heatmap in row] if shared else [each.values], **ends)
            left, top = LEFT + column * (64 + GAP), TOP
            # A cell is as large as the picture, four pixels for each patch.
            found = np.asarray(picture)[top + 1 : top + 64 : 4, left + 1 : left + 64 : 4, 0]
            expected = (256 * scale.place(each.values)).clip(0, 255).astype(int)
            np.testing.assert_allclose(found, expected, atol=1)


def test_a_smooth_picture_of_a_robust_scale_does_not_spread_what_it_clips() -> None:
    values = np.tile([1.0, 2.0], (16, 8))
    values[8, 8] = 1000
    smooth = np.asarray(heatmap(values).overlay(Style("gray", 1.0, smooth=True, scale="robust")))[..., 0]
    # Two patches away it has no influence.
    assert smooth[34, 42] == smooth[2, 42]


# Captions.


@pytest.mark.parametrize(
    ("name", "values", "ends", "expected"),
    [
        ("linear", [1, 2, 3], {}, ""),
        ("linear", [1, 2, 3], {"high": 2.5}, "Linear scale; 1 of 3 patches lies above it."),
        ("linear", [1, 2, 3, 4], {"low": 2.5}, "Linear scale; 2 of 4 patches lie below it."),
        ("robust", range(100), {}, "Scale from percentile 2 to 98; 2 of 100 patches lie above it and 2 below."),
        ("log", [1, 10, 100], {}, "Logarithmic scale."),
        ("log", [0, 0, 100], {}, "Logarithmic scale; 2 of 3 patches lie below it."),
        ("rank", [1, 2, 3], {}, "Scale by rank."),
        ("zero", [-1, 2, 3], {}, "Scale from zero; 1 of 3 patches lies below it."),
    ],
)
def test_a_caption_names_the_scale_and_counts_what_lies_beyond(
    name: str, values: Sequence[float], ends: dict[str, float], expected: str
) -> None:
    assert fit(name, [values], **ends).caption(values) == expected
    token_heatmap = heatmap([[float(each) for each in values]])
    caption = f"a map. {expected}" if expected else "a map"
    assert token_heatmap.caption(Style(scale=name, **ends)) == caption
    assert token_heatmap.description == "a map"


def test_a_caption_of_a_signed_map_is_about_absolute_values() -> None:
    values = [*range(-50, 0), *range(50)]
    caption = "Scale to percentile 98 of the absolute values; 1 of 100 patches lies below it."
    assert fit("robust", [values], signed=True).caption(values) == caption
    assert fit("rank", [values], signed=True).caption(values) == "Scale by rank."


# Invalid scales.

PERCENTILES = "expected two numbers from 0 to 100, the lower one first"


@pytest.mark.parametrize(
    ("style", "message"),
    [
        ({"scale": "logarithm"}, "scale 'logarithm': expected 'linear', 'robust', 'log', 'rank' or 'zero'"),
        ({"scale": "Linear"}, "; did you mean 'linear'?"),
        ({"scale": 3}, "scale 3: expected 'linear'"),
        ({"percentiles": (98, 2)}, f"percentiles = (98, 2): {PERCENTILES}"),
        ({"percentiles": (50, 50)}, PERCENTILES),
        ({"percentiles": (-1, 50)}, PERCENTILES),
        ({"percentiles": (2, 100.1)}, PERCENTILES),
        ({"percentiles": (2,)}, PERCENTILES),
        ({"percentiles": "28"}, PERCENTILES),
        ({"percentiles": (2, math.nan)}, PERCENTILES),
        ({"scale": fit("linear", [[0, 1]]), "low": 0}, "a fitted scale has ends of its own"),
    ],
)
def test_an_unknown_scale_is_refused_in_one_sentence(style: dict[str, Any], message: str) -> None:
    with pytest.raises(MethodError) as caught:
        Style(**style)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_zero_of_a_signed_map_leaves_the_image_clear_where_weak_values_do() -> None:
    signed = heatmap([[-1.0, 0.0, 1.0]], signed=True)
    overlay = np.asarray(signed.overlay(Style("gray", 1.0, fade=True, scale="linear")))[1, 2::4, 0]
    # Black over black, the image's own black, and white.
    assert overlay.tolist() == [0, pytest.approx(0, abs=20), 255]
    assert np.asarray(signed.overlay(Style("gray", 1.0)))[1, 2::4, 0].tolist() == [0, 128, 255]

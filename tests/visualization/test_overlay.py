"""The colours, marks and grids of an overlay."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import Colormap, ListedColormap
from PIL import Image

from tests.support.heatmaps import array, heatmap_over, noise, prepare, token_map
from tests.support.pairs import every_pair
from vitviz import Heatmap, MethodError, QueryError, Style
from vitviz.visualization.colormaps import COLORMAPS, colour_table


def matplotlibs(colormap: str, values: np.ndarray) -> np.ndarray:
    """The colours that matplotlib gives to values in [0, 1], in [0, 255]."""
    return matplotlib.colormaps[colormap](values)[..., :3] * 255


@pytest.mark.parametrize("value", [0.0, 0.2, -3.0, 1e-30])
@pytest.mark.parametrize("smooth", [False, True])
def test_a_constant_map_has_one_colour_the_lowest(value: float, smooth: bool) -> None:
    heatmap = heatmap_over(torch.full((2, 3), value), noise(12, 8))
    overlay = array(heatmap.overlay(Style(opacity=1.0, smooth=smooth)))
    np.testing.assert_allclose(overlay, np.broadcast_to(colour_table(Style().colormap)[0], overlay.shape), atol=0.5001)


# Colours.


@pytest.mark.parametrize("colormap", COLORMAPS)
def test_opaque_colours_are_matplotlibs(colormap: str) -> None:
    # 256 values, and values next to the borders between two colours.
    steps = np.arange(257, dtype=np.float32) / 256
    values = np.concatenate([steps, np.nextafter(steps[1:], 0), (steps[:-1] + steps[1:]) / 2]).reshape(1, -1)
    overlay = heatmap_over(values, noise(values.size, 1)).overlay(Style(colormap, opacity=1.0))
    np.testing.assert_allclose(array(overlay), matplotlibs(colormap, values), atol=0.5001)


@pytest.mark.parametrize(
    "colormap",
    [
        matplotlib.colormaps["tab10"],
        ListedColormap(["red", "lime", "blue"]),
        matplotlib.colormaps["jet"].resampled(999),
    ],
)
@pytest.mark.parametrize("fade", [False, True])
def test_a_colormap_of_any_number_of_colours_is_applied_itself(colormap: Colormap, fade: bool) -> None:
    # Next to the borders between two colours, which are not those of 256 steps.
    borders = np.arange(1, colormap.N, dtype=np.float32) / np.float32(colormap.N)
    values = np.concatenate([[0], borders - 1e-6, borders + 1e-6, [1]]).astype(np.float32)[None]
    expected = (colormap(values)[..., :3] * 255).round()
    found = heatmap_over(values, noise(values.size, 1)).overlay(Style(colormap, 1.0, fade=fade))
    steps = min(colormap.N, 256)
    faded = 255 * ((steps * values).clip(0, steps - 1).astype(int) / (steps - 1)) ** 1.5 if fade else 255
    image = array(noise(values.size, 1))
    share = np.broadcast_to(np.round(faded) / 255, values.shape)[..., None]
    # Of more colours than 256, as many are taken.
    np.testing.assert_allclose(
        array(found), share * expected + (1 - share) * image, atol=1 if steps == colormap.N else 6
    )


def test_a_colormap_that_is_not_opaque_is_refused() -> None:
    with pytest.raises(MethodError, match=r"colours of alpha 0\.2 found; .*opacity=.*fade="):
        Style(ListedColormap([(1, 0, 0, 0.2), (0, 1, 0, 1)], name="clear"))


def exact(heatmap: Heatmap, smooth: bool) -> np.ndarray:
    """The value at every pixel in double precision; NaN outside the model's view."""
    left, top, right, bottom = heatmap.geometry.box
    values = heatmap.values.double().numpy()
    for start, end, pixels in ((top, bottom, heatmap.image.height), (left, right, heatmap.image.width)):
        centres = np.arange(pixels) + 0.5
        position = (centres - start) * len(values) / (end - start) - 0.5
        position = np.clip(position if smooth else np.floor(position + 0.5), 0, len(values) - 1)
        before = np.floor(position).astype(int)
        behind = np.minimum(before + 1, len(values) - 1)
        along = (position - before)[:, None]
        values = (1 - along) * values[before] + along * values[behind]
        values[(centres < start) | (centres >= end)] = np.nan
        values = values.T
    return values


def assert_mixed(heatmap: Heatmap, style: Style) -> None:
    """Every channel is within 1 level of the exact blend, and exact where only one of the two images contributes."""
    low, high = heatmap.token_map.range
    low, high = low if style.low is None else style.low, high if style.high is None else style.high
    steps = 256 * (exact(heatmap, style.smooth) - low) / (high - low)
    unseen, image, overlay = np.isnan(steps), array(heatmap.image), array(heatmap.overlay(style))
    away = []
    # A value on the border between two colours, up to single precision, may have either.
    for shift in (-1e-3, 1e-3):
        places = np.where(unseen, 0, steps + shift).clip(0, 255).astype(int)
        mixture = (1 - style.opacity) * image + style.opacity * matplotlibs(style.colormap, places)
        away.append(np.abs(overlay - mixture.round())[~unseen])
    assert np.minimum(*away).max() <= (0 if style.opacity in (0, 1) else 1)
    assert np.array_equal(overlay[unseen], (0.35 * image[unseen]).round())


@every_pair(
    fit=["crop", "squash", "native"],
    ends=[(None, None), (0.3, 0.6), (-1.0, None)],
    smooth=[False, True],
    opacity=[0.0, 0.05, 0.3, 0.6, 1.0],
)
def test_colours_are_mixed_with_the_image_by_the_opacity(
    fit: str, ends: tuple[float | None, float | None], smooth: bool, opacity: float
) -> None:
    image, geometry, rows, columns = prepare((250, 170), fit)
    heatmap = Heatmap(token_map(torch.rand(rows, columns)), image, geometry)
    assert_mixed(heatmap, Style("turbo", opacity, smooth, low=ends[0], high=ends[1]))


def test_a_map_far_wider_than_the_ends_of_its_colours_is_as_exact_as_single_precision() -> None:
    heatmap = heatmap_over([[0.2, 0.5]], noise(100, 2))
    overlay = array(heatmap.overlay(Style("gray", 1.0, smooth=True, low=torch.tensor(0.45), high=0.45)))[0, :, 0]
    assert np.array_equal(overlay, np.where(exact(heatmap, True)[0] > 0.45, 255, 0))


def test_the_overlay_carries_none_of_the_files_notes() -> None:
    image = noise(8, 8)
    image.info = {"icc_profile": b"profile", "transparency": (0, 0, 0)}
    assert all(not heatmap_over([[0.0, 1.0]], image).overlay(Style(opacity=o)).info for o in (0.0, 0.6, 1.0))


@pytest.mark.parametrize(
    ("low", "high", "levels"),
    [
        (None, None, [0, 127.5, 191.25, 255]),
        (0.0, None, [85, 170, 212.5, 255]),
        (None, 0.8, [0, 85, 127.5, 170]),
        (0.3, 0.5, [0, 127.5, 255, 255]),
        (0.7, None, [0, 0, 0, 0]),
        (None, 0.1, [255, 255, 255, 255]),
        (0.45, 0.45, [0, 0, 255, 255]),
        (-1e30, 1e30, [127.5, 127.5, 127.5, 127.5]),
        (0.0, 1e-40, [255, 255, 255, 255]),
    ],
)
def test_the_ends_of_the_colours_are_the_maps_own_or_those_of_the_style(
    low: float | None, high: float | None, levels: list[float]
) -> None:
    heatmap = heatmap_over([[0.2, 0.4, 0.5, 0.6]], noise(4, 2))
    overlay = array(heatmap.overlay(Style("gray", 1.0, low=low, high=high)))
    np.testing.assert_allclose(overlay[..., 0], [levels] * 2, atol=1.5)


# Marks and grids.


def difference_mask(before: Image.Image, after: Image.Image) -> np.ndarray:
    """``"height width"``: where two pictures differ."""
    return (array(before) != array(after)).any(-1)


@pytest.mark.parametrize("mark", [(1, 2), (0, 0), (2, 3)])
def test_a_mark_is_a_black_and_white_frame_around_its_patch_and_nothing_else(mark: tuple[int, int]) -> None:
    heatmap = heatmap_over(torch.rand(3, 4), Image.new("RGB", (80, 60), (90, 120, 150)))
    plain, marked = heatmap.overlay(), heatmap.overlay(mark=mark)
    top, left = 20 * mark[0], 20 * mark[1]
    # At a border of the picture, the frame lies inside it.
    frame, (bottom, right) = np.zeros((60, 80), int), (min(top + 20, 58), min(left + 20, 78))
    top, left = max(top, 2), max(left, 2)
    frame[top - 2 : bottom + 2, left - 2 : right + 2] = 1
    frame[top - 1 : bottom + 1, left - 1 : right + 1] = 2
    frame[top:bottom, left:right] = 0
    assert np.array_equal(difference_mask(plain, marked), frame > 0)
    assert (array(marked)[frame == 1] == 0).all()
    assert (array(marked)[frame == 2] == 255).all()
    # A picture that is too thin for the frame is covered by it.
    thin = heatmap_over(torch.eye(3), Image.new("RGB", (2, 600), (90, 120, 150)))
    rows = np.flatnonzero(difference_mask(thin.overlay(), thin.overlay(mark=(1, 1))).all(1))
    assert rows.tolist() == [*range(196, 404)]


@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_a_mark_lies_where_the_model_saw_its_patch(fit: str) -> None:
    image, geometry, rows, columns = prepare((640, 200), fit)
    heatmap = Heatmap(token_map(torch.rand(rows, columns)), image, geometry)
    ys, xs = np.nonzero(difference_mask(heatmap.overlay(), heatmap.overlay(mark=(2, 3))))
    left, top, right, bottom = geometry.patch_rectangle(2, 3, rows, columns)
    assert (xs.min() + xs.max() + 1) / 2 == pytest.approx((left + right) / 2, abs=1)
    assert (ys.min() + ys.max() + 1) / 2 == pytest.approx((top + bottom) / 2, abs=1)


@pytest.mark.parametrize("mark", [(3, 0), (0, 4), (-1, 0), (0, -1)])
def test_a_mark_on_a_missing_patch_is_refused(mark: tuple[int, int]) -> None:
    heatmap = heatmap_over(torch.rand(3, 4), noise(20, 20))
    message = rf"^mark \({mark[0]}, {mark[1]}\): this map has patches \(0, 0\) to \(2, 3\)$"
    with pytest.raises(QueryError, match=message):
        heatmap.overlay(mark=mark)


def test_the_grid_is_drawn_along_the_borders_of_the_patches_only() -> None:
    heatmap = heatmap_over(torch.rand(3, 4), Image.new("RGB", (80, 60)))
    lines = difference_mask(heatmap.overlay(), heatmap.overlay(Style(grid=True)))
    expected = np.zeros((60, 80), bool)
    expected[[0, 20, 40, 59]] = True
    expected[:, [0, 20, 40, 60, 79]] = True
    assert np.array_equal(lines, expected)

"""A map lies on the user's own pixels: where the model saw each patch, in the colours of its values."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from einops import reduce
from PIL import Image

from vitviz import Geometry, Heatmap, Preprocessing, QueryError, Style, TokenMap
from vitviz.errors.kinds import ImageError, MethodError
from vitviz.visualization.heatmaps import BAND, COLORMAPS, colour_table

SIZES = {"landscape": (61, 37), "portrait": (37, 61), "square": (48, 48), "panorama": (203, 20), "tiny": (3, 5)}
every_size = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
every_fit = pytest.mark.parametrize("fit", ["crop", "squash", "native"])


def token_map(values: Any) -> TokenMap:
    return TokenMap(torch.as_tensor(values, dtype=torch.float32), {}, "weight", "a map")


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def prepared(size: tuple[int, int], fit: str, crop_fraction: float = 1.0) -> tuple[Image.Image, Geometry, int, int]:
    """An image, where a model with patches of 4 pixels sees it, and the height and width of that model's grid."""
    image = noise(*size)
    preprocessing = Preprocessing(24, 32, (0.5,) * 3, (0.5,) * 3, fit, crop_fraction)
    geometry = preprocessing.prepare(image, 4, 4).geometry
    return image, geometry, geometry.input_height // 4, geometry.input_width // 4


def whole(values: Any, image: Image.Image) -> Heatmap:
    """A map over the whole image."""
    box = (0.0, 0.0, float(image.width), float(image.height))
    return Heatmap(token_map(values), image, Geometry(image.width, image.height, box, 8, 8))


def array(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(int)


def matplotlibs(colormap: str, values: np.ndarray) -> np.ndarray:
    """The colours that matplotlib gives to values in [0, 1], in [0, 255]."""
    return matplotlib.colormaps[colormap](values)[..., :3] * 255


def placed(values: torch.Tensor, image: Image.Image, geometry: Geometry) -> np.ndarray:
    """Every pixel has the value of the patch whose rectangle holds its centre; NaN where there is none."""
    rows, columns = values.shape
    pixels = np.full((image.height, image.width), np.nan, np.float32)
    for row in range(rows):
        for column in range(columns):
            left, top, right, bottom = geometry.patch_rectangle(row, column, rows, columns)
            for y in range(image.height):
                for x in range(math.floor(left), math.ceil(right)):
                    if left <= x + 0.5 < right and top <= y + 0.5 < bottom:
                        pixels[y, x] = values[row, column]
    return pixels


# Places.


@every_size
@every_fit
@pytest.mark.parametrize("crop_fraction", [1.0, 0.8])
def test_every_patch_lies_exactly_on_its_rectangle(size: tuple[int, int], fit: str, crop_fraction: float) -> None:
    image, geometry, rows, columns = prepared(size, fit, crop_fraction)
    heatmap = Heatmap(token_map(torch.randn(rows, columns)), image, geometry)
    pixels = heatmap.pixels()
    assert (pixels.dtype, pixels.shape) == (np.float32, (image.height, image.width))
    np.testing.assert_array_equal(pixels, placed(heatmap.values, image, geometry))


def test_patch_borders_on_pixel_centres_round_as_the_rectangles_do() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        width, columns = int(random.integers(4, 300)), int(random.integers(1, 20))
        left = float(random.integers(0, width // 2)) + random.choice([0, 0.5, 1 / 3])
        right = float(min(width, left + 1 + random.integers(1, width)))
        geometry = Geometry(width, 1, (left, 0.0, right, 1.0), 1, columns)
        heatmap = Heatmap(token_map(torch.arange(columns)[None]), Image.new("RGB", (width, 1)), geometry)
        edges = [geometry.patch_rectangle(0, column, 1, columns)[0] for column in range(columns)]
        for x, value in enumerate(heatmap.pixels()[0]):
            inside = left <= x + 0.5 < right
            assert np.array_equal(
                value, sum(edge <= x + 0.5 for edge in edges) - 1 if inside else np.nan, equal_nan=True
            )


@every_size
@every_fit
@pytest.mark.parametrize("smooth", [False, True])
def test_what_the_model_did_not_see_has_no_value_and_everything_else_has(
    size: tuple[int, int], fit: str, smooth: bool
) -> None:
    image, geometry, rows, columns = prepared(size, fit)
    pixels = Heatmap(token_map(torch.rand(rows, columns)), image, geometry).pixels(smooth)
    for y in range(image.height):
        for x in range(image.width):
            assert np.isnan(pixels[y, x]) == (geometry.patch_at(x + 0.5, y + 0.5, rows, columns) is None)
    assert np.isnan(pixels).any() == (fit == "crop")


@every_fit
@pytest.mark.parametrize("style", [Style(), Style(smooth=True), Style(opacity=1.0), Style(opacity=0.0)])
def test_the_overlay_dims_the_unseen_and_colours_nothing_of_it(fit: str, style: Style) -> None:
    image, geometry, rows, columns = prepared(SIZES["panorama"], fit)
    heatmap = Heatmap(token_map(torch.rand(rows, columns)), image, geometry)
    unseen = np.isnan(heatmap.pixels())
    dimmed = array(heatmap.overlay(style))[unseen]
    np.testing.assert_allclose(dimmed, 0.35 * array(image)[unseen], atol=0.5001)
    assert unseen.any() == (fit == "crop")


# Smooth.


def test_smooth_has_the_patchs_value_at_its_centre() -> None:
    values = torch.randn(3, 4)
    pixels = whole(values, noise(4 * 5, 3 * 7)).pixels(smooth=True)
    np.testing.assert_allclose(pixels[3::7, 2::5], values, atol=1e-6)


def test_smooth_is_linear_between_centres_and_constant_beyond_the_outermost() -> None:
    values = torch.tensor([[0.0, 1.0, 5.0], [2.0, 3.0, 7.0]])
    pixels = whole(values, noise(30, 20)).pixels(smooth=True)
    across = np.interp(np.arange(30) + 0.5, [5, 15, 25], [0, 1, 5])
    down = np.interp(np.arange(20) + 0.5, [5, 15], [0, 2])
    np.testing.assert_allclose(pixels, down[:, None] + across, atol=1e-5)


@every_size
@every_fit
def test_smooth_stays_between_the_values_of_the_map(size: tuple[int, int], fit: str) -> None:
    image, geometry, rows, columns = prepared(size, fit)
    heatmap = Heatmap(token_map(torch.rand(rows, columns)), image, geometry)
    pixels, (low, high) = heatmap.pixels(smooth=True), heatmap.token_map.range
    assert np.nanmin(pixels) >= low - 1e-6 and np.nanmax(pixels) <= high + 1e-6


@pytest.mark.parametrize("smooth", [False, True])
def test_a_map_of_one_patch_covers_what_was_seen(smooth: bool) -> None:
    assert (whole([[0.25]], noise(9, 7)).pixels(smooth) == 0.25).all()


# Colours.


@pytest.mark.parametrize("value", [0.0, 0.2, -3.0, 1e-30])
@pytest.mark.parametrize("smooth", [False, True])
def test_a_constant_map_has_one_colour_the_lowest(value: float, smooth: bool) -> None:
    heatmap = whole(torch.full((2, 3), value), noise(12, 8))
    overlay = array(heatmap.overlay(Style(opacity=1.0, smooth=smooth)))
    np.testing.assert_allclose(overlay, np.broadcast_to(colour_table(Style().colormap)[0], overlay.shape), atol=0.5001)


def test_a_range_too_small_for_single_precision_is_not_divided_by() -> None:
    values = torch.tensor([[0.0, 1e-200]], dtype=torch.float64)
    box = (0.0, 0.0, 4.0, 2.0)
    heatmap = Heatmap(TokenMap(values, {}, "weight", "a map"), noise(4, 2), Geometry(4, 2, box, 2, 4))
    assert len(np.unique(array(heatmap.overlay(Style(opacity=1.0))).reshape(-1, 3), axis=0)) == 1


@pytest.mark.parametrize("colormap", COLORMAPS)
def test_opaque_colours_are_matplotlibs(colormap: str) -> None:
    # 256 values and those next to the borders between two colours.
    steps = np.arange(257, dtype=np.float32) / 256
    values = np.concatenate([steps, np.nextafter(steps[1:], 0), (steps[:-1] + steps[1:]) / 2]).reshape(1, -1)
    overlay = whole(values, noise(values.size, 1)).overlay(Style(colormap, opacity=1.0))
    np.testing.assert_allclose(array(overlay), matplotlibs(colormap, values), atol=0.5001)


@pytest.mark.parametrize("colormap", COLORMAPS)
def test_the_colour_table_is_matplotlibs(colormap: str) -> None:
    table = colour_table(colormap)
    assert (table.shape, table.dtype) == ((256, 3), np.float32)
    np.testing.assert_allclose(table, matplotlibs(colormap, np.arange(256)), atol=1e-4)


@every_fit
def test_no_opacity_gives_back_the_image_where_it_was_seen(fit: str) -> None:
    image, geometry, rows, columns = prepared(SIZES["landscape"], fit)
    heatmap = Heatmap(token_map(torch.rand(rows, columns)), image, geometry)
    seen = ~np.isnan(heatmap.pixels())
    assert np.array_equal(array(heatmap.overlay(Style(opacity=0.0)))[seen], array(image)[seen])


def exact(heatmap: Heatmap, smooth: bool) -> np.ndarray:
    """The value at every pixel in double precision, NaN where it was not seen."""
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
    """Every channel is within 1 level of the mixture in exact numbers, and has none of it where there is one part."""
    low, high = heatmap.token_map.range
    low, high = low if style.low is None else style.low, high if style.high is None else style.high
    steps = 256 * (exact(heatmap, style.smooth) - low) / (high - low)
    unseen, image, overlay = np.isnan(steps), array(heatmap.image), array(heatmap.overlay(style))
    away = []
    # What lies on the border between two colours, up to single precision, may have either.
    for shift in (-1e-3, 1e-3):
        places = np.where(unseen, 0, steps + shift).clip(0, 255).astype(int)
        mixture = (1 - style.opacity) * image + style.opacity * matplotlibs(style.colormap, places)
        away.append(np.abs(overlay - mixture.round())[~unseen])
    assert np.minimum(*away).max() <= (0 if style.opacity in (0, 1) else 1)
    assert np.array_equal(overlay[unseen], (0.35 * image[unseen]).round())


@pytest.mark.parametrize("opacity", [0.0, 0.05, 0.3, 0.5, 0.6, 0.95, 1.0])
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("ends", [(None, None), (0.3, 0.6), (-1.0, None)])
@every_fit
def test_colours_are_mixed_with_the_image_by_the_opacity(
    fit: str, ends: tuple[float | None, float | None], smooth: bool, opacity: float
) -> None:
    image, geometry, rows, columns = prepared((250, 170), fit)
    heatmap = Heatmap(token_map(torch.rand(rows, columns)), image, geometry)
    assert_mixed(heatmap, Style("turbo", opacity, smooth, low=ends[0], high=ends[1]))


@pytest.mark.parametrize("height", [5, BAND - 1, BAND, BAND + 1, 2 * BAND + 7])
@pytest.mark.parametrize("smooth", [False, True])
def test_a_picture_of_any_height_is_coloured_to_its_last_row(height: int, smooth: bool) -> None:
    assert_mixed(whole(torch.rand(7, 3), noise(11, height)), Style("viridis", smooth=smooth))


def test_every_level_mixes_with_every_colour() -> None:
    levels = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None, None], (256, 256, 3))
    heatmap = whole(torch.arange(256)[None] / 255, Image.fromarray(np.ascontiguousarray(levels)))
    for colormap in COLORMAPS:
        for opacity in np.linspace(0, 1, 21):
            assert_mixed(heatmap, Style(colormap, float(opacity)))


def test_a_map_far_wider_than_the_ends_of_its_colours_is_as_exact_as_single_precision() -> None:
    heatmap = whole([[0.2, 0.5]], noise(100, 2))
    overlay = array(heatmap.overlay(Style("gray", 1.0, smooth=True, low=0.45, high=0.45)))[0, :, 0]
    assert np.array_equal(overlay, np.where(exact(heatmap, True)[0] > 0.45, 255, 0))


def test_the_overlay_carries_none_of_the_files_notes() -> None:
    image = noise(8, 8)
    image.info = {"icc_profile": b"profile", "transparency": (0, 0, 0)}
    assert all(not whole([[0.0, 1.0]], image).overlay(Style(opacity=o)).info for o in (0.0, 0.6, 1.0))


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
    heatmap = whole([[0.2, 0.4, 0.5, 0.6]], noise(4, 2))
    overlay = array(heatmap.overlay(Style("gray", 1.0, low=low, high=high)))
    np.testing.assert_allclose(overlay[..., 0], [levels] * 2, atol=1.5)


@pytest.mark.parametrize(
    "style", [Style(opacity=1.0), Style(opacity=1.0, grid=True, smooth=True)], ids=["plain", "grid and smooth"]
)
def test_the_users_image_is_left_untouched(style: Style) -> None:
    image = noise(30, 20)
    before = image.tobytes()
    heatmap = whole(torch.rand(4, 6), image)
    overlay = heatmap.overlay(style, mark=(1, 2))
    heatmap.resized(15).overlay(style)
    assert overlay.mode == "RGB" and overlay.size == image.size
    assert overlay.tobytes() != before
    assert image.tobytes() == before


def test_a_heatmap_says_what_its_map_says() -> None:
    heatmap = whole([[0.1, 0.2]], noise(4, 4))
    assert heatmap.values is heatmap.token_map.values
    assert heatmap.description == "a map"


# Marks and grids.


def changed(before: Image.Image, after: Image.Image) -> np.ndarray:
    """``"height width"``: where two pictures differ."""
    return (array(before) != array(after)).any(-1)


@pytest.mark.parametrize("mark", [(1, 2), (0, 0), (2, 3)])
def test_a_mark_is_a_black_and_white_frame_around_its_patch_and_nothing_else(mark: tuple[int, int]) -> None:
    heatmap = whole(torch.rand(3, 4), Image.new("RGB", (80, 60), (90, 120, 150)))
    plain, marked = heatmap.overlay(), heatmap.overlay(mark=mark)
    top, left = 20 * mark[0], 20 * mark[1]
    frame = np.zeros((100, 120), int)
    frame[top + 18 : top + 42, left + 18 : left + 42] = 1
    frame[top + 19 : top + 41, left + 19 : left + 41] = 2
    frame[top + 20 : top + 40, left + 20 : left + 40] = 0
    frame = frame[20:80, 20:100]
    assert np.array_equal(changed(plain, marked), frame > 0)
    assert (array(marked)[frame == 1] == 0).all()
    assert (array(marked)[frame == 2] == 255).all()


def test_a_mark_on_a_large_picture_is_thicker() -> None:
    heatmap = whole(torch.rand(3, 4), Image.new("RGB", (1200, 900), "gray"))
    marked = array(heatmap.overlay(mark=(1, 1)))
    assert (marked[450, 296:300] == 255).all()
    assert (marked[450, 292:296] == 0).all()


@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_a_mark_lies_where_the_model_saw_its_patch(fit: str) -> None:
    image, geometry, rows, columns = prepared((640, 200), fit)
    heatmap = Heatmap(token_map(torch.rand(rows, columns)), image, geometry)
    ys, xs = np.nonzero(changed(heatmap.overlay(), heatmap.overlay(mark=(2, 3))))
    left, top, right, bottom = geometry.patch_rectangle(2, 3, rows, columns)
    assert (xs.min() + xs.max() + 1) / 2 == pytest.approx((left + right) / 2, abs=1)
    assert (ys.min() + ys.max() + 1) / 2 == pytest.approx((top + bottom) / 2, abs=1)


@pytest.mark.parametrize("mark", [(3, 0), (0, 4), (-1, 0), (0, -1)])
def test_a_mark_on_a_patch_that_is_not_there_is_refused(mark: tuple[int, int]) -> None:
    heatmap = whole(torch.rand(3, 4), noise(20, 20))
    message = rf"^mark \({mark[0]}, {mark[1]}\): this map has patches \(0, 0\) to \(2, 3\)$"
    with pytest.raises(QueryError, match=message):
        heatmap.overlay(mark=mark)


def test_the_grid_is_drawn_along_the_borders_of_the_patches_only() -> None:
    heatmap = whole(torch.rand(3, 4), Image.new("RGB", (80, 60)))
    lines = changed(heatmap.overlay(), heatmap.overlay(Style(grid=True)))
    expected = np.zeros((60, 80), bool)
    expected[[0, 20, 40, 59]] = True
    expected[:, [0, 20, 40, 60, 79]] = True
    assert np.array_equal(lines, expected)


def test_the_grid_stays_within_what_the_model_saw() -> None:
    image, geometry, rows, columns = prepared((640, 200), "crop")
    heatmap = Heatmap(token_map(torch.rand(rows, columns)), image, geometry)
    ys, xs = np.nonzero(changed(heatmap.overlay(), heatmap.overlay(Style(grid=True))))
    left, top, right, bottom = geometry.box
    assert left - 1 <= xs.min() and xs.max() <= right + 1
    assert top - 1 <= ys.min() and ys.max() <= bottom + 1
    assert (xs.min(), xs.max()) == (pytest.approx(left, abs=1.5), pytest.approx(right, abs=1.5))


# Other sizes.


@every_size
@every_fit
@pytest.mark.parametrize("side", [300, 111, 10])
def test_resized_keeps_every_patch_at_its_place(size: tuple[int, int], fit: str, side: int) -> None:
    image, geometry, rows, columns = prepared(size, fit)
    heatmap = Heatmap(token_map(torch.rand(rows, columns)), image, geometry)
    resized = heatmap.resized(side)
    assert max(resized.image.size) == side
    assert resized.image.size == (resized.geometry.image_width, resized.geometry.image_height)
    assert resized.token_map is heatmap.token_map
    across, down = resized.image.width / image.width, resized.image.height / image.height
    for row in range(rows):
        for column in range(columns):
            left, top, right, bottom = geometry.patch_rectangle(row, column, rows, columns)
            expected = (left * across, top * down, right * across, bottom * down)
            assert resized.geometry.patch_rectangle(row, column, rows, columns) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("size", "side", "expected"), [((1000, 2), 100, (100, 1)), ((2, 1000), 50, (1, 50))])
def test_a_strip_keeps_at_least_one_pixel(size: tuple[int, int], side: int, expected: tuple[int, int]) -> None:
    resized = whole(torch.rand(2, 2), noise(*size)).resized(side)
    assert resized.image.size == expected
    assert not np.isnan(resized.pixels()).any()


# End to end.


@every_fit
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize(
    ("size", "place"), [((320, 200), (120, 60)), ((320, 200), (190, 130)), ((200, 320), (20, 210))]
)
def test_the_brightest_spot_lies_over_the_object(
    size: tuple[int, int], place: tuple[int, int], fit: str, smooth: bool
) -> None:
    """The hot patch is found in the model's own input, so that both ways through the geometry must agree."""
    image = Image.new("RGB", size)
    image.paste("white", (*place, place[0] + 60, place[1] + 60))
    ready = Preprocessing(64, 64, (0.5,) * 3, (0.5,) * 3, fit).prepare(image, 4, 4)
    brightness = reduce(ready.pixels[0], "channel (row height) (column width) -> row column", "mean", height=4, width=4)
    values = torch.zeros_like(brightness)
    values[brightness > 0.99] = 0.5
    inside = (brightness > 0.99).nonzero()
    hottest = inside[len(inside) // 2]
    values[tuple(hottest)] = 1.0
    heatmap = Heatmap(token_map(values), image, ready.geometry)
    overlay = array(heatmap.overlay(Style("gray", 1.0, smooth)))[..., 0]
    ys, xs = np.nonzero(overlay == overlay.max())
    assert place[0] <= xs.min() and xs.max() < place[0] + 60
    assert place[1] <= ys.min() and ys.max() < place[1] + 60
    # Every patch that the model saw white is over the object, and none beside it.
    ys, xs = np.nonzero(heatmap.pixels() > 0)
    assert place[0] <= xs.min() and xs.max() < place[0] + 60
    assert place[1] <= ys.min() and ys.max() < place[1] + 60


# Styles.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"colormap": "jet"},
            "colormap 'jet': expected 'inferno', 'viridis', 'magma', 'cividis', 'gray' or 'turbo'",
        ),
        ({"opacity": 1.1}, "opacity = 1.1: expected a number in [0, 1]"),
        ({"opacity": -0.1}, "opacity = -0.1: expected a number in [0, 1]"),
        ({"opacity": math.nan}, "opacity = nan: expected a number in [0, 1]"),
        ({"low": 0.5, "high": 0.1}, "low = 0.5 and high = 0.1: expected finite numbers, low at most high"),
        ({"low": math.nan}, "low = nan and high = None: expected finite numbers, low at most high"),
        ({"high": math.inf}, "low = None and high = inf: expected finite numbers, low at most high"),
    ],
)
def test_a_style_that_cannot_be_drawn_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MethodError) as raised:
        Style(**changes)
    assert str(raised.value) == message


# What everybody expects of a map.


def test_a_map_is_an_array() -> None:
    values = torch.arange(6.0).view(2, 3)
    heatmap = whole(values, noise(30, 20))
    for found in (np.asarray(heatmap), np.array(heatmap), heatmap.numpy()):
        assert found.dtype == np.float32 and np.array_equal(found, values.numpy())
    assert np.asarray(heatmap, dtype=np.float64).dtype == np.float64
    assert np.allclose(np.stack([heatmap, heatmap]).mean((1, 2)), 2.5)
    # What is done to the array is not done to the map.
    heatmap.numpy()[:] = 0
    assert torch.equal(heatmap.values, values)
    with pytest.raises(ValueError, match="without a copy"):
        np.array(heatmap, copy=False)


@pytest.mark.parametrize("name", ["map.png", "map.webp", "map.bmp"])
def test_a_map_is_saved_as_the_picture_that_it_is(tmp_path: Path, name: str) -> None:
    heatmap = whole(torch.arange(6.0).view(2, 3), noise(30, 20))
    heatmap.save(tmp_path / name)
    heatmap.save(str(tmp_path / f"marked {name}"), "magma", (1, 2))
    with Image.open(tmp_path / name) as plain, Image.open(tmp_path / f"marked {name}") as marked:
        assert plain.format == name.partition(".")[2].upper()
        if name != "map.webp":
            assert np.array_equal(array(plain), array(heatmap.overlay()))
            assert np.array_equal(array(marked), array(heatmap.overlay(Style("magma"), (1, 2))))


@pytest.mark.parametrize("name", ["map.xyz", "map", "gone/map.png"])
def test_what_cannot_be_saved_is_told(tmp_path: Path, name: str) -> None:
    heatmap = whole(torch.zeros(2, 3), noise(30, 20))
    with pytest.raises(ImageError, match=f"{re.escape(name)}: cannot be written"):
        heatmap.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "map.webp"
    whole(torch.zeros(2, 3), noise(30, 20)).save(file)
    before = file.read_bytes()
    # WebP has sides of at most 16,383 pixels, which its encoder finds when the file is open.
    with pytest.raises(ImageError, match=r"map\.webp: cannot be written \("):
        whole(torch.zeros(2, 3), noise(17_000, 2)).save(file)
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("side", [0, -3, 2.5, "big"])
def test_a_size_that_there_is_not_is_refused(side: Any) -> None:
    with pytest.raises(
        MethodError, match=f"longest_side = {re.escape(repr(side))}: expected a whole number of at least"
    ):
        whole(torch.zeros(2, 3), noise(30, 20)).resized(side)

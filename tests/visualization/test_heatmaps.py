"""A heatmap covers the user's pixels where the model saw each patch, in the colours of its values."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from tests.support.heatmaps import array, heatmap_over, noise, prepare, token_map
from tests.support.pairs import every_pair
from vitviz import Geometry, Heatmap, Style
from vitviz.errors.kinds import ImageError, MethodError

IS_NUMPY_2 = np.lib.NumpyVersion(np.__version__) >= "2.0.0"

SIZES = {"landscape": (61, 37), "portrait": (37, 61), "square": (48, 48), "panorama": (203, 20), "tiny": (3, 5)}
every_fit = pytest.mark.parametrize("fit", ["crop", "squash", "native"])


def placed(values: torch.Tensor, image: Image.Image, geometry: Geometry) -> np.ndarray:
    """The value for every pixel: that of the patch whose rectangle holds its centre, NaN outside all patches."""
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


@every_pair(size=SIZES, fit=["crop", "squash", "native"], crop_fraction=[1.0, 0.8])
def test_every_patch_lies_exactly_on_its_rectangle(size: tuple[int, int], fit: str, crop_fraction: float) -> None:
    image, geometry, rows, columns = prepare(size, fit, crop_fraction)
    heatmap = Heatmap(token_map(torch.randn(rows, columns)), image, geometry)
    pixels = heatmap.pixels()
    assert (pixels.dtype, pixels.shape) == (np.float32, (image.height, image.width))
    np.testing.assert_array_equal(pixels, placed(heatmap.values, image, geometry))


@every_pair(size=SIZES, fit=["crop", "squash", "native"], smooth=[False, True])
def test_only_pixels_outside_the_models_view_have_no_value(size: tuple[int, int], fit: str, smooth: bool) -> None:
    image, geometry, rows, columns = prepare(size, fit)
    pixels = Heatmap(token_map(torch.rand(rows, columns)), image, geometry).pixels(smooth)
    for y in range(image.height):
        for x in range(image.width):
            assert np.isnan(pixels[y, x]) == (geometry.patch_at(x + 0.5, y + 0.5, rows, columns) is None)
    assert np.isnan(pixels).any() == (fit == "crop")


# Smooth.


def test_smooth_is_linear_between_centres_and_constant_beyond_the_outermost() -> None:
    values = torch.tensor([[0.0, 1.0, 5.0], [2.0, 3.0, 7.0]])
    pixels = heatmap_over(values, noise(30, 20)).pixels(smooth=True)
    across = np.interp(np.arange(30) + 0.5, [5, 15, 25], [0, 1, 5])
    down = np.interp(np.arange(20) + 0.5, [5, 15], [0, 2])
    np.testing.assert_allclose(pixels, down[:, None] + across, atol=1e-5)


@every_pair(size=SIZES, fit=["crop", "squash", "native"], side=[300, 111, 10])
def test_resized_keeps_every_patch_at_its_place(size: tuple[int, int], fit: str, side: int) -> None:
    image, geometry, rows, columns = prepare(size, fit)
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


# Styles.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"opacity": math.nan}, "opacity = nan: expected a number in [0, 1]"),
        ({"low": math.nan}, "low = nan and high = None: expected finite numbers, low at most high"),
        ({"high": math.inf}, "low = None and high = inf: expected finite numbers, low at most high"),
    ],
)
def test_an_impossible_style_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MethodError) as raised:
        Style(**changes)
    assert str(raised.value) == message


def test_numbers_of_numpy_are_those_of_python() -> None:
    style = Style(smooth=np.True_, percentiles=np.array([5, 95]), opacity=np.float32(0.5))  # type: ignore[arg-type]
    assert style == Style(smooth=True, percentiles=(5, 95), opacity=0.5) and style.smooth is True


# What everybody expects of a map.


def test_a_map_is_an_array() -> None:
    values = torch.arange(6.0).view(2, 3)
    heatmap = heatmap_over(values, noise(30, 20))
    for found in (np.asarray(heatmap), np.array(heatmap), heatmap.numpy()):
        assert found.dtype == np.float32 and np.array_equal(found, values.numpy())
    assert np.allclose(np.stack([heatmap, heatmap]).mean((1, 2)), 2.5)
    assert np.array_equal(values.numpy() * heatmap, np.square(heatmap))
    # A change of the array does not change the map.
    for found in (np.asarray(heatmap), np.array(heatmap), heatmap.numpy(), torch.as_tensor(heatmap)):
        found[:] = 9
    assert torch.equal(heatmap.values, torch.arange(6.0).view(2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_ways_to_an_array_agree(dtype: torch.dtype) -> None:
    values = torch.rand(3, 4, dtype=dtype, generator=torch.Generator().manual_seed(0))
    heatmap, expected = heatmap_over(values, noise(30, 20), dtype=dtype), values.numpy()
    assert heatmap.shape == expected.shape and len(heatmap) == len(expected)
    for found in (
        torch.as_tensor(heatmap).numpy(),
        torch.tensor(heatmap).numpy(),
        torch.from_dlpack(heatmap).numpy(),
        pytest.importorskip("pandas").DataFrame(heatmap).to_numpy(),
        np.array(list(heatmap)),
        np.array([row for row in heatmap]),
        np.array(heatmap, copy=False) if IS_NUMPY_2 else np.asarray(heatmap),
        heatmap[:],
    ):
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
    for wanted in (np.float64, np.float16, "int32"):
        for found in (np.asarray(heatmap, dtype=wanted), np.array(heatmap, dtype=wanted, copy=True)):
            assert found.dtype == wanted and np.array_equal(found, expected.astype(wanted))
    if IS_NUMPY_2:  # before, copy=False asked for no more than np.asarray
        with pytest.raises(ValueError, match="copy"):
            np.array(heatmap, dtype=np.float16, copy=False)


def test_the_numbers_are_saved_whatever_the_style(tmp_path: Path) -> None:
    heatmap = heatmap_over(torch.arange(6.0).view(2, 3), noise(30, 20))
    heatmap.save(tmp_path / "one.npz")
    heatmap.save(tmp_path / "two.NPZ", Style("magma", scale="log"), (1, 2))
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.NPZ").read_bytes()
    with np.load(tmp_path / "one.npz") as file:
        assert {name: file[name].tolist() for name in file.files} == {
            "values": [[0, 1, 2], [3, 4, 5]],
            "box": [0, 0, 30, 20],
            "grid": [2, 3],
            "size": [30, 20],
            "description": heatmap.description,
        }
        assert file["values"].dtype == np.float32
    with pytest.raises(ImageError, match=r"x\.csv: cannot be written: expected .*\.png, or \.npz for its numbers"):
        heatmap.save(tmp_path / "x.csv")
    with pytest.raises(ImageError, match=r"path: a BytesIO found; .* a buffer, heatmap.overlay\(\).save\(buffer, "):
        heatmap.save(io.BytesIO())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["map.png", "map.webp", "map.bmp"])
def test_a_map_is_saved_as_the_picture_that_it_is(tmp_path: Path, name: str) -> None:
    heatmap = heatmap_over(torch.arange(6.0).view(2, 3), noise(30, 20))
    heatmap.save(tmp_path / name)
    heatmap.save(str(tmp_path / f"marked {name}"), "magma", (1, 2))
    with Image.open(tmp_path / name) as plain, Image.open(tmp_path / f"marked {name}") as marked:
        assert plain.format == name.partition(".")[2].upper()
        description = marked.getexif().get(ExifTags.Base.ImageDescription)
        assert description == (None if name == "map.bmp" else heatmap.caption("magma").replace("–", "-"))
        if name != "map.webp":
            assert np.array_equal(array(plain), array(heatmap.overlay()))
            assert np.array_equal(array(marked), array(heatmap.overlay(Style("magma"), (1, 2))))


def test_a_picture_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "map.webp"
    heatmap_over(torch.zeros(2, 3), noise(30, 20)).save(file)
    before = file.read_bytes()
    # WebP allows sides of at most 16,383 pixels, and its encoder fails only after the file is opened.
    with pytest.raises(ImageError, match=r"map\.webp: cannot be written \("):
        heatmap_over(torch.zeros(2, 3), noise(17_000, 2)).save(file)
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("side", [0, -3, 2.5, "big"])
def test_an_unknown_size_is_refused(side: Any) -> None:
    with pytest.raises(
        MethodError, match=f"longest_side = {re.escape(repr(side))}: expected a whole number of at least"
    ):
        heatmap_over(torch.zeros(2, 3), noise(30, 20)).resized(side)

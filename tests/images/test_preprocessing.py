"""Preprocessing brings pictures to the model's input; Geometry says where it lies."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.pictures import photo
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.images import resizing
from vitviz.images.geometry import Geometry
from vitviz.images.preprocessing import PreparedImage, Preprocessing
from vitviz.images.resizing import INTERPOLATIONS

PATCHES = [(16, 16), (14, 14), (8, 16), (32, 8), (4, 4)]


TORCH = [("torchvision", "bicubic"), ("torchvision float", "bilinear")]


# Fitting.


def resized_and_cropped(
    image: Image.Image, resized: int, side: int, resampling: Image.Resampling, rounding: str
) -> Image.Image:
    """Resize(resized) and CenterCrop(side) of torchvision on PIL images, or of an image processor of transformers."""
    short, long = sorted(image.size)
    new_long = int(resized * long / short)
    width, height = (resized, new_long) if image.width <= image.height else (new_long, resized)
    image = image.resize((width, height), resampling)
    top, left = round((height - side) / 2.0), round((width - side) / 2.0)
    if rounding == "transformers":
        top, left = (height - side) // 2, (width - side) // 2
    return image.crop((left, top, left + side, top + side))


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize(
    ("side", "fraction", "resized"),
    # timm truncates 92.99999999999999, too.
    [(32, 1.0, 32), (56, 0.875, 64), (224, 0.9, 248), (32, 32 / 93, 92)],
)
@pytest.mark.parametrize("rounding", ["torchvision", "transformers"])
def test_crop_is_resize_and_center_crop(
    interpolation: str, side: int, fraction: float, resized: int, rounding: str
) -> None:
    settings = {"crop_fraction": fraction, "interpolation": interpolation, "rounding": rounding}
    preprocessing = Preprocessing(side, side, (0.5,) * 3, (0.5,) * 3, "crop", **settings)
    random = np.random.default_rng(6)
    sizes = [(640, 480), (375, 500), (31, 33), (200, 200), *random.integers(2, 300, (8, 2)).tolist()]
    for seed, (width, height) in enumerate(sizes):
        image = photo(seed, width, height)
        fitted, _ = preprocessing.fit_image(image, 8, 8)
        expected = resized_and_cropped(image, resized, side, INTERPOLATIONS[interpolation], rounding)
        assert np.array_equal(fitted, expected), (width, height)


def test_squash_and_native_show_the_whole_image_resized_once() -> None:
    preprocessing = Preprocessing(64, 32, (0.5,) * 3, (0.5,) * 3, "squash")
    image = photo(0, 90, 50)
    fitted, geometry = preprocessing.fit_image(image, 16, 16)
    assert np.array_equal(fitted, image.resize((32, 64), Image.Resampling.BICUBIC))
    assert geometry.box == (0, 0, 90, 50)
    fitted, geometry = preprocessing.fit_image(image, 16, 16, "native")
    assert np.array_equal(fitted, image.resize((64, 32), Image.Resampling.BICUBIC))
    assert geometry.box == (0, 0, 90, 50)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(30_000, 2), (2, 30_000)])
@pytest.mark.parametrize("fit", ["crop", "squash", "native"])
def test_a_strip_stays_bounded_whatever_the_fit(size: tuple[int, int], fit: str) -> None:
    preprocessing = Preprocessing(224, 224, (0.5,) * 3, (0.5,) * 3, fit)
    prepared = preprocessing.prepare(Image.new("RGB", size), 16, 16)
    height, width = prepared.pixels.shape[2:]
    assert height % 16 == 0 and width % 16 == 0
    assert height * width <= 224 * 224
    if fit == "native":
        assert (width > height) == (size[0] > size[1])


@pytest.mark.parametrize(("backend", "interpolation"), [("pillow", "lanczos"), *TORCH])
def test_only_the_longest_strips_differ_by_rounding(
    backend: str, interpolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"crop_fraction": 0.9, "interpolation": interpolation, "backend": backend}
    preprocessing = Preprocessing(64, 64, (0.0,) * 3, (1.0,) * 3, "crop", **settings)
    for seed, size in enumerate([(300, 5), (5, 300), (41, 40), (2, 90)]):
        image = photo(seed, *size)
        whole, geometry = preprocessing.fit_image(image, 8, 8)
        with monkeypatch.context() as limit:
            limit.setattr(resizing, "MAX_PIXELS", 0)
            piece, same = preprocessing.fit_image(image, 8, 8)
        assert same == geometry
        assert np.abs(np.subtract(whole, piece, dtype=np.int16)).max() <= 2


@pytest.mark.parametrize("patch", PATCHES)
def test_native_keeps_the_aspect_at_about_the_trained_area_in_whole_patches(patch: tuple[int, int]) -> None:
    preprocessing = Preprocessing(224, 224, (0.5,) * 3, (0.5,) * 3, "native")
    for width, height in ((640, 480), (480, 640), (1000, 250), (37, 41)):
        fitted, _ = preprocessing.fit_image(Image.new("RGB", (width, height)), *patch)
        assert fitted.height % patch[0] == 0 and fitted.width % patch[1] == 0
        assert 0.75 < fitted.width * fitted.height / (224 * 224) < 1.25
        scale = math.sqrt(224 * 224 / (width * height))
        assert abs(fitted.width - width * scale) <= patch[1] / 2 + 1e-9
        assert abs(fitted.height - height * scale) <= patch[0] / 2 + 1e-9


@pytest.mark.parametrize("patch", PATCHES)
def test_native_as_in_transformers_has_as_many_patches_as_fit(patch: tuple[int, int]) -> None:
    preprocessing = Preprocessing(224, 224, (0.5,) * 3, (0.5,) * 3, "native", rounding="transformers")
    trained = (224 // patch[0]) * (224 // patch[1])
    for width, height in ((640, 480), (480, 640), (1000, 250), (37, 41), (1, 1), (9000, 2), (224, 224)):
        fitted, _ = preprocessing.fit_image(Image.new("RGB", (width, height)), *patch)
        rows, columns = fitted.height // patch[0], fitted.width // patch[1]
        assert (fitted.height, fitted.width) == (rows * patch[0], columns * patch[1])
        assert 1 <= rows * columns <= trained
        # The picture one per cent larger has too many; the search for the scale ends at a hundred.
        scale = 1.01 * min(rows * patch[0] / height, columns * patch[1] / width)
        larger = math.ceil(height * scale / patch[0]) * math.ceil(width * scale / patch[1])
        assert larger > trained or scale > 100


@pytest.mark.parametrize("mode", ["L", "P", "RGBA"])
def test_an_image_that_open_image_did_not_make_is_refused(mode: str) -> None:
    with pytest.raises(ImageError, match=f"mode '{mode}': expected 'RGB'"):
        Preprocessing(8, 8, (0.5,) * 3, (0.5,) * 3).prepare(Image.new(mode, (8, 8)), 4, 4)


def test_the_users_image_is_kept_and_untouched_by_preparing() -> None:
    image = photo(0, 50, 40)
    before = image.tobytes()
    for fit in ("crop", "squash", "native"):
        for channels in (1, 3):
            prepared = Preprocessing(16, 16, (0.5,) * channels, (0.5,) * channels, fit).prepare(image, 8, 8)
            prepared.pixels.zero_()
            assert prepared.image is image
    assert (image.mode, image.size, image.tobytes()) == ("RGB", (50, 40), before)


def test_a_prepared_image_with_another_images_geometry_is_refused() -> None:
    image = Image.new("RGB", (20, 10))
    pixels = torch.zeros(1, 3, 4, 4)
    with pytest.raises(ConfigError, match="20×10 pixels: its geometry is for 10×20"):
        PreparedImage(image, pixels, Geometry(10, 20, (0, 0, 10, 20), 4, 4))
    with pytest.raises(ConfigError, match=r"\(1, 3, 4, 4\): the geometry expects '1 channel 4 8'"):
        PreparedImage(image, pixels, Geometry(20, 10, (0, 0, 20, 10), 4, 8))


# Preprocessing.

IMAGENET = Preprocessing(16, 24, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "squash", 0.875, "bilinear")


def test_prepared_pixels_are_standardised_channel_by_channel() -> None:
    image = photo(0, 24, 16)
    prepared = IMAGENET.prepare(image, 8, 8)
    expected = (np.asarray(image) / 255 - IMAGENET.mean) / IMAGENET.std
    assert prepared.pixels.dtype == torch.float32
    assert prepared.pixels.shape == (1, 3, 16, 24)
    assert np.allclose(prepared.pixels[0].permute(1, 2, 0), expected, atol=1e-6)


@pytest.mark.parametrize("size", [(40, 40), (64, 24), (21, 83)])
def test_a_model_of_little_detail_sees_the_picture_reduced_and_enlarged(size: tuple[int, int]) -> None:
    width, height = size
    scale = 16 / math.sqrt(width * height)
    image = photo(1, width, height)
    reduced = image.resize((round(width * scale), round(height * scale)), Image.Resampling.BILINEAR)
    expected = np.asarray(reduced.resize(size, Image.Resampling.BILINEAR)) / 255
    plain = Preprocessing(height, width, (0.0,) * 3, (1.0,) * 3, "squash")
    coarse = replace(plain, detail=16)
    pixels = coarse.prepare(image, 1, 1).pixels
    # Pillow rounds to whole levels in each of four passes.
    assert np.abs(pixels[0].permute(1, 2, 0).numpy() - expected).max() < 3 / 255
    # If the network's input has no more pixels than the detail, nothing is reduced.
    assert torch.equal(coarse.at(8, 1, 1).prepare(image, 1, 1).pixels, plain.at(8, 1, 1).prepare(image, 1, 1).pixels)
    # The picture that a visitor sees is not reduced.
    assert np.array_equal(coarse.fit_image(image, 1, 1)[0], image)


def test_preprocessing_survives_json() -> None:
    naflex = Preprocessing(8, 8, (0.5,), (1,), "native", squash_fraction=0.5, rounding="transformers", detail=6)
    for preprocessing in (IMAGENET, naflex):
        restored = Preprocessing.from_dict(json.loads(json.dumps(preprocessing.to_dict())))
        assert restored == preprocessing
        assert hash(restored) == hash(preprocessing)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 8}, "Preprocessing has no parameter 'size': expected 'height', 'width', 'mean', .* 'color_profile'"),
        ({"std": None}, "Preprocessing: missing a required argument: 'std'; expected Preprocessing\\(height, width, "),
        ({"height": 0}, "0×24 pixels"),
        ({"width": -3}, "16×-3 pixels"),
        ({"height": "16"}, "'16'×24 pixels: expected whole numbers"),
        ({"height": 16.0}, "16.0×24 pixels: expected whole numbers"),
        ({"height": 10**6, "width": 10**6}, "at most 64,000,000 pixels"),
        ({"mean": [0.5, 0.5]}, r"mean = \(0.5, 0.5\): pictures of 2 channels; so far, vitviz prepares"),
        ({"mean": 0.5}, "1 means and 3 deviations"),
        ({"mean": ["a", 0.5, 0.5]}, "mean = .*: expected a tuple of 1 or 3 finite numbers"),
        ({"std": [0.2, 0.0, 0.2]}, "every deviation must be above 0"),
        ({"std": [0.2, -1, 0.2]}, "every deviation must be above 0"),
        ({"std": [0.2, math.nan, 0.2]}, "std = .*nan.*finite"),
        ({"fit": "pad"}, "fit 'pad': expected 'crop', 'squash' or 'native'"),
        ({"crop_fraction": 0}, r"crop_fraction = 0: expected a number in \(0, 1\]"),
        ({"crop_fraction": 1.2}, r"crop_fraction = 1.2: expected a number in \(0, 1\]"),
        ({"crop_fraction": math.nan}, "crop_fraction = nan"),
        ({"crop_fraction": "all"}, "crop_fraction = 'all'"),
        ({"squash_fraction": 0}, r"squash_fraction = 0: expected a number in \(0, 1\]"),
        ({"squash_fraction": 1.2}, r"squash_fraction = 1.2: expected a number in \(0, 1\]"),
        ({"rounding": "timm"}, "rounding 'timm': expected 'torchvision' or 'transformers'"),
        ({"rounding": {}}, "rounding {}: expected 'torchvision'"),
        ({"interpolation": "cubic"}, "interpolation 'cubic': expected 'nearest', .* 'lanczos', 'box' or 'hamming'"),
        ({"interpolation": {}}, "interpolation {}: expected 'nearest'"),
        (
            {"interpolation": "box", "backend": "torchvision"},
            "interpolation 'box' of the backend 'torchvision': expected 'nearest', 'bilinear'",
        ),
        ({"backend": "cuda"}, "backend 'cuda': expected 'pillow', 'torchvision' or 'torchvision float'"),
        ({"detail": 0}, "detail = 0: expected None or a whole number of at least 1"),
        ({"detail": 48.0}, "detail = 48.0: expected None"),
        ({"detail": True}, "detail = True: expected None"),
        ({"backend": {}}, "backend {}: expected 'pillow'"),
    ],
)
def test_an_impossible_preprocessing_is_refused_with_the_legal_values(change: dict[str, object], message: str) -> None:
    values = {**IMAGENET.to_dict(), **change}
    with pytest.raises(ConfigError, match=message):
        Preprocessing.from_dict({name: value for name, value in values.items() if value is not None})

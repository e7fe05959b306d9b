"""Arrays and tensors become their picture, and are not changed."""

from __future__ import annotations

import gc
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.image_files import (
    GREEN,
    UPRIGHT,
    oriented_file,
    palette_image,
    png,
    quadrants,
    row_image,
    transparent,
)
from vitviz.errors.kinds import ImageError
from vitviz.images.opening import open_image

# Arrays.

PIXELS = np.random.default_rng(1).integers(0, 256, (6, 9, 3), dtype=np.uint8)
OPAQUE = np.concatenate([PIXELS, np.full((6, 9, 1), 255, np.uint8)], axis=2)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (PIXELS, PIXELS),
        (PIXELS[..., 0], PIXELS[..., [0, 0, 0]]),
        (PIXELS[..., :1], PIXELS[..., [0, 0, 0]]),
        (OPAQUE, PIXELS),
        (np.dstack([PIXELS, np.zeros((6, 9), np.uint8)]), np.full_like(PIXELS, 255)),
        (PIXELS / 255, PIXELS),
        ((PIXELS / 255).astype(np.float32), PIXELS),
        (np.full((4, 4), 0.0686, np.float16), np.full((4, 4, 3), 17)),
        (Image.fromarray(PIXELS[..., 0]).convert("LA").convert("La"), PIXELS[..., [0, 0, 0]]),
    ],
)
def test_arrays_become_their_picture(array: np.ndarray, expected: np.ndarray) -> None:
    assert np.array_equal(open_image(array), expected)


@pytest.mark.parametrize(
    ("array", "phrases"),
    [
        (np.zeros(5), ["(5,)", "'height width channel'"]),
        (np.zeros((2, 3, 4, 3)), ["(2, 3, 4, 3)", "'height width channel'"]),
        (np.zeros((0, 8, 3), np.uint8), ["(0, 8, 3)"]),
        (np.zeros((8, 8), np.int64), ["int64", "uint8 in [0, 255]", "floating point in [0, 1]"]),
        (np.zeros((8, 8), bool), ["bool", "uint8 in [0, 255]"]),
        (np.full((8, 8), 255.0), ["float64", "from 255 to 255", "[0, 1]"]),
        (np.full((8, 8), -0.1), ["from -0.1", "[0, 1]"]),
        (np.full((8, 8), np.inf), ["from inf to inf; expected floating point in [0, 1], or value_range, ", "white$"]),
        (np.array([[0.0, np.nan], [0.5, 1.0]]), ["NaN among its values", "nan_to_num"]),
        (np.zeros((1, 8), np.uint8), ["8×1 pixels", "2×2"]),
        (np.broadcast_to(np.uint8(0), (2, 100_001)), ["100001×2 pixels", "100,000", "crop it"]),
    ],
)
def test_arrays_that_are_no_picture_are_refused(array: np.ndarray, phrases: list[str]) -> None:
    with pytest.raises(ImageError) as refusal:
        open_image(array)
    assert all(phrase in f"{refusal.value}$" for phrase in phrases), str(refusal.value)


# Inputs that must not change.


@pytest.mark.parametrize(
    "image",
    [
        quadrants(),
        quadrants().convert("L"),
        row_image("RGBA", [(9, 8, 7, 6), (1, 2, 3, 0)]),
        palette_image(1),
        palette_image(bytes([0, 9, 255, 255])),
        row_image("I;16", [0, 1000]),
        row_image("F", [0.0, 0.5]),
        Image.open(io.BytesIO(oriented_file(UPRIGHT, 6, "PNG"))),
        Image.open(io.BytesIO(png(4, 2, 2, 0, b"\x1b", transparent(1)))),
    ],
    ids=["RGB", "L", "RGBA", "P", "P alphas", "I;16", "F", "EXIF", "tRNS"],
)
def test_the_callers_picture_is_untouched(image: Image.Image) -> None:
    image.load()
    before = image.mode, image.size, image.tobytes(), dict(image.info), image.getpalette()
    result = open_image(image)
    assert result is not image
    result.paste((1, 2, 3), (0, 0, *result.size))
    result.info["note"] = "mine"
    assert (image.mode, image.size, image.tobytes(), dict(image.info), image.getpalette()) == before


@pytest.mark.slow
def test_the_file_is_closed_and_the_image_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    quadrants().save(path)
    # Ignore warnings of earlier tests.
    gc.collect()
    with warnings.catch_warnings(record=True) as leaked:
        warnings.simplefilter("always")
        result = open_image(path)
        gc.collect()
    assert [str(warning.message) for warning in leaked] == []
    path.unlink()
    assert result.getpixel((24, 8)) == GREEN


# Arrays and tensors.

LEVELS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
CHANNELS_FIRST = torch.from_numpy(LEVELS).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("tensor", "value_range"),
    [
        (CHANNELS_FIRST, None),
        (CHANNELS_FIRST[None], None),
        (CHANNELS_FIRST / 255, (0, 1)),
        (CHANNELS_FIRST.double() / 255, [0.0, 1.0]),
        (CHANNELS_FIRST / 127.5 - 1, (-1, 1)),
        (CHANNELS_FIRST.float(), (0, 255)),
        (CHANNELS_FIRST.int(), np.array([0, 255])),
        ((CHANNELS_FIRST / 255).requires_grad_(), (0, 1)),
        (LEVELS / 127.5 - 1, (-1, 1)),
        (LEVELS.astype(np.uint16) * 257, (0, 65535)),
    ],
)
def test_a_tensor_or_array_with_its_range_is_the_image_that_it_was_made_of(
    tensor: Any, value_range: tuple[float, float] | None
) -> None:
    assert open_image(tensor, value_range=value_range).tobytes() == LEVELS.tobytes()


def test_tensors_of_grey_and_with_alpha_are_taken() -> None:
    grey, alpha = CHANNELS_FIRST[:1], torch.cat([CHANNELS_FIRST, torch.full((1, 6, 8), 255, dtype=torch.uint8)])
    expected = np.repeat(LEVELS[..., :1], 3, -1).tobytes()
    assert open_image(grey).tobytes() == open_image(grey[0]).tobytes() == expected
    assert open_image(alpha).tobytes() == LEVELS.tobytes()
    half = torch.full((3, 4, 4), 0.5, dtype=torch.bfloat16)
    assert open_image(half, value_range=(0, 1)).getpixel((0, 0)) == (128, 128, 128)


@pytest.mark.parametrize(
    ("tensor", "value_range", "sentence"),
    [
        (
            CHANNELS_FIRST / 255,
            None,
            "nothing says what black and white are; expected value_range, the values of black and white, such as ",
        ),
        (CHANNELS_FIRST / 1.0, (0, 1), "outside of value_range = (0, 1)"),
        (CHANNELS_FIRST.permute(1, 2, 0), None, "of 'height width channel', tensor.permute(2, 0, 1) gives that"),
        (np.zeros((4, 6, 5), np.uint8), None, "of 'channel height width', array.transpose(1, 2, 0) gives that"),
    ],
)
def test_a_tensor_or_array_of_another_shape_or_range_is_refused(
    tensor: Any, value_range: tuple[float, float] | None, sentence: str
) -> None:
    with pytest.raises(ImageError) as caught:
        open_image(tensor, value_range=value_range)
    assert sentence in str(caught.value) and str(tuple(tensor.shape)) in str(caught.value)

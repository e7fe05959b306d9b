"""A picture is prepared for another input size."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from vitviz.errors.kinds import ConfigError
from vitviz.images.preprocessing import Preprocessing

SIZED: list[tuple[tuple[int, int], tuple[int, int], int, tuple[int, int]]] = [
    ((224, 224), (16, 16), 448, (448, 448)),
    ((224, 224), (16, 16), 16, (16, 16)),
    ((224, 224), (14, 14), 518, (518, 518)),
    ((16, 24), (4, 4), 64, (64, 96)),
    ((24, 16), (4, 4), 64, (96, 64)),
    # 20 · 24 / 16 = 30 lies between 28 and 32 and is rounded to an even number of patches.
    ((16, 24), (4, 4), 20, (20, 32)),
    ((16, 56), (4, 8), 12, (12, 40)),
    ((16, 24), (4, 8), 4, (4, 8)),
    # Of a square, the side with the larger patch counts as the shorter one, and stays it.
    ((32, 32), (8, 16), 48, (48, 48)),
    ((160, 160), (10, 16), 32, (40, 32)),
    ((160, 160), (16, 10), 32, (32, 40)),
]


@pytest.mark.parametrize(("trained", "patch", "resolution", "expected"), SIZED)
def test_a_resolution_is_the_shorter_side_and_the_other_in_proportion(
    trained: tuple[int, int], patch: tuple[int, int], resolution: int, expected: tuple[int, int]
) -> None:
    trained_size = Preprocessing(*trained, (0.1,) * 3, (0.2,) * 3, "crop", 0.9, "bilinear", 0.8, "transformers")
    found = trained_size.at(resolution, *patch)
    assert (found.height, found.width) == expected
    assert replace(found, height=trained_size.height, width=trained_size.width) == trained_size, "all else stays"
    assert found.at(min(trained), *patch).at(resolution, *patch) == found
    assert found.prepare(Image.new("RGB", (50, 40)), *patch, "squash").pixels.shape == (1, 3, *expected)


@pytest.mark.parametrize(
    ("resolution", "near"),
    [
        (500, "496 or 512"),
        (497, "496 or 512"),
        (511.5, "496 or 512"),
        (1, "16 or 32"),
        (0, "224 or 240"),
        (-16, "224 or 240"),
        (True, "224 or 240"),
        ("224", "224 or 240"),
        (224.0, "224 or 240"),
        (math.nan, "224 or 240"),
        (math.inf, "224 or 240"),
        (None, "224 or 240"),
        ((224, 224), "224 or 240"),
    ],
)
def test_a_resolution_that_the_patch_does_not_divide_is_refused_with_the_nearest_that_are(
    resolution: Any, near: str
) -> None:
    trained_size = Preprocessing(224, 224, (0.5,) * 3, (0.5,) * 3)
    with pytest.raises(ConfigError) as caught:
        trained_size.at(resolution, 16, 16)
    is_number = isinstance(resolution, int | float) and not isinstance(resolution, bool) and math.isfinite(resolution)
    kind = "" if is_number else "one number, the shorter side in pixels: "
    expected = f"expected {kind}a multiple of the patch's 16 pixels: {near}"
    assert str(caught.value) == f"resolution = {resolution!r}: {expected}"


def test_a_resolution_of_too_many_pixels_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"input of 16000×16000 pixels: .* at most 64,000,000 pixels"):
        Preprocessing(224, 224, (0.5,) * 3, (0.5,) * 3).at(16_000, 16, 16)


@pytest.mark.parametrize(("height", "width", "patch"), [(16, 24, (4, 4)), (64, 16, (2, 8)), (32, 32, (8, 16))])
def test_the_smaller_resolutions_are_all_that_there_are(height: int, width: int, patch: tuple[int, int]) -> None:
    trained_size = Preprocessing(height, width, (0.5,) * 3, (0.5,) * 3)
    legal = []
    for resolution in range(1, min(height, width)):
        try:
            trained_size.at(resolution, *patch)
        except ConfigError:
            continue
        legal.append(resolution)
    assert list(trained_size.smaller(*patch)) == legal[::-1] != []


@pytest.mark.parametrize("rounding", ["torchvision", "transformers"])
@pytest.mark.parametrize("fit", ["crop", "squash", "native"])
def test_the_input_size_is_known_before_anything_is_resized(fit: str, rounding: str) -> None:
    trained_size = Preprocessing(48, 64, (0.5,) * 3, (0.5,) * 3, fit, 0.9, squash_fraction=0.9, rounding=rounding)
    for size in ((30, 20), (20, 90), (500, 30), (2, 2)):
        image = Image.new("RGB", size)
        for preprocessing in (trained_size, trained_size.at(96, 8, 16)):
            expected = preprocessing.prepare(image, 8, 16).pixels.shape[2:]
            assert preprocessing.input_size(image, 8, 16) == expected
            assert preprocessing.input_size(image, 8, 16, "squash") == (preprocessing.height, preprocessing.width)
    with pytest.raises(ConfigError, match="fit 'stretch': expected 'crop', 'squash' or 'native'"):
        trained_size.input_size(Image.new("RGB", (8, 8)), 8, 16, "stretch")

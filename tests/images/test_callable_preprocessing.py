"""A function of the user's makes the input; a box says what it shows, or maps are drawn on the input itself."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.heatmaps import noise
from tests.support.refusals import check_refusals
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.images.callable_preprocessing import CallablePreprocessing
from vitviz.images.image_facts import ImageFacts
from vitviz.images.opening import open_image

SIDE = 32
MEAN, STD = (0.1, 0.5, 0.4), (0.2, 0.3, 0.25)


def standardise(image: Image.Image) -> torch.Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    return (torch.from_numpy(np.array(image)).movedim(2, 0) / 255 - mean) / std


def small(image: Image.Image) -> torch.Tensor:
    return standardise(image.resize((SIDE, SIDE), Image.BILINEAR))


def in_centre(image: Image.Image) -> torch.Tensor:
    left, top = image.width // 2 - 20, image.height // 2 - 20
    return small(image.crop((left, top, left + 40, top + 40)))


def centre(width: int, height: int) -> tuple[int, int, int, int]:
    return width // 2 - 20, height // 2 - 20, width // 2 + 20, height // 2 + 20


# Where the input lies.


@pytest.mark.parametrize("box", [centre, (30, 15, 70, 55)])
def test_a_box_says_what_of_the_picture_the_input_shows(box: Any) -> None:
    image = noise(100, 70)
    prepared = CallablePreprocessing(in_centre, box).prepare(image, 8, 12)
    assert prepared.image is image and prepared.assumptions == ()
    # Of 32 columns, patches of 12 show 24.
    assert torch.equal(prepared.pixels[0], in_centre(image)[:, :, :24])
    assert prepared.geometry.box == (30, 15, 60, 55)
    assert (prepared.geometry.input_height, prepared.geometry.input_width) == (32, 24)


def test_a_box_is_in_pixels_of_a_file_that_is_reduced() -> None:
    image = noise(100, 70)
    ImageFacts((), (200, 140), (100, 70)).keep(image)
    geometry = CallablePreprocessing(small, lambda width, height: (0, 0, width, height)).prepare(image, 8, 8).geometry
    assert geometry.box == (0, 0, 200, 140)


@pytest.mark.parametrize("moments", [(MEAN, STD), None])
def test_without_a_box_maps_are_drawn_on_the_input_and_that_is_said(moments: Any) -> None:
    image = noise(100, 70)
    ImageFacts(("it is old",), (200, 140), (100, 70)).keep(image)
    prepared = CallablePreprocessing(in_centre, None, moments).prepare(image, 8, 8)
    assert prepared.geometry.box == (0, 0, SIDE, SIDE) and prepared.image.size == (SIDE, SIDE)
    facts = ImageFacts.of(prepared.image)
    # The size of the file remains for tables.
    assert facts.is_input and facts.size == (200, 140)
    how = "its standardisation undone" if moments else "its values scaled to their range"
    sentence = f"it is shown as a function makes it for the model, {how}: box= of vitviz.load says what that shows of "
    assert prepared.assumptions == ("it is old", f"{sentence}the picture")
    crop = image.crop(centre(100, 70)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    shown = np.asarray(prepared.image, float)
    if moments:
        assert np.abs(shown - crop).max() <= 1
    else:
        pixels = in_centre(image).movedim(0, 2).numpy()
        assert np.abs(shown - 255 * (pixels - pixels.min()) / np.ptp(pixels)).max() <= 1
    assert prepared.resized(16).assumptions == prepared.assumptions
    # As a picture of its own, it is no larger than it is.
    assert ImageFacts.of(open_image(prepared.image)).size == (SIDE, SIDE)


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_an_input_of_one_value_and_one_channel_is_drawn(value: float) -> None:
    prepared = CallablePreprocessing(lambda image: torch.full((1, 8, 8), value)).prepare(noise(20, 20), 8, 8)
    assert prepared.image.getcolors() == [(64, (0, 0, 0))]


def test_an_input_of_each_pictures_own_size_is_followed() -> None:
    preprocessing = CallablePreprocessing(standardise, lambda width, height: (0, 0, width, height))
    for size in ((80, 40), (16, 24), (8, 9)):
        result = preprocessing.prepare(noise(*size), 8, 8)
        assert result.pixels.shape == (1, 3, size[1] // 8 * 8, size[0] // 8 * 8)
        assert result.geometry.box == (0, 0, size[0] // 8 * 8, size[1] // 8 * 8)
    with pytest.raises(ImageError, match="an input of 5×9 pixels; expected at least one patch, 8×8"):
        preprocessing.prepare(noise(9, 5), 8, 8)


def as_array(image: Image.Image) -> np.ndarray:
    return np.asarray(small(image)).transpose(1, 2, 0)


def reducing(image: Image.Image) -> torch.Tensor:
    image.thumbnail((SIDE, SIDE))
    return small(image)


class OfArrays:
    """As those of albumentations, which take an array by its name."""

    __module__ = "albumentations.core"

    def __call__(self, *, image: np.ndarray) -> dict[str, np.ndarray]:
        return {"image": as_array(Image.fromarray(image))}


CALLS: dict[str, tuple[Callable[..., Any], Callable[[Image.Image], torch.Tensor]]] = {
    "an array with channels last": (as_array, small),
    "image=array": (OfArrays(), small),
    "a batch of one in a mapping": (lambda image: {"pixel_values": [np.asarray(small(image))]}, small),
    "double precision": (lambda image: small(image).double()[None], small),
    "changes the picture": (reducing, lambda image: reducing(image.copy())),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_is_called_and_its_input_taken_out_of_what_it_returns(name: str) -> None:
    function, expected = CALLS[name]
    image = noise(150, 111)
    pixels = CallablePreprocessing(function).prepare(image, 8, 8).pixels[0]
    torch.testing.assert_close(pixels, expected(image), rtol=0, atol=0)
    assert image.size == (150, 111)


# What is refused.

REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "levels": (
        lambda image: torch.from_numpy(np.array(image)).movedim(2, 0),
        "it returns Tensor of shape .* of torch.uint8; expec",
    ),
    "a picture": (lambda image: image.resize((SIDE, SIDE)), "it returns an Image; expected a tensor"),
    "ten crops": (lambda image: small(image).expand(10, 3, SIDE, SIDE), r"it returns Tensor of shape \(10, 3, 32, 3"),
    "no numbers": (lambda image: small(image) * torch.nan, ".* of finite floating-point numbers"),
    "fails": (lambda image: 1 / 0, "ZeroDivisionError: division by zero"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_input_is_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(ImageError, match=f"^preprocessing = a function: {message}"):
        CallablePreprocessing(function)


def test_a_picture_for_which_the_function_fails_or_the_box_does_not_fit_is_refused() -> None:
    def picky(image: Image.Image) -> torch.Tensor:
        if image.width < 100:
            raise ValueError("too narrow")
        return small(image)

    def prepare(box: Any, width: int = 120) -> Callable[[], object]:
        return lambda: CallablePreprocessing(picky, box).prepare(noise(width, 99), 8, 8)

    inside = ": expected left, top, right and lower edge inside the picture of 120×99 pixels"
    check_refusals(
        ImageError,
        {
            "preprocessing = a function: ValueError: too narrow": prepare(None, 99),
            rf"box = \(0, 0, 121, 99\){inside}": prepare((0, 0, 121, 99)),
            rf"box = \(5, 0, 5, 99\){inside}": prepare(lambda width, height: (5, 0, 5, height)),
            rf"box = \(5, 6\){inside}": prepare((5, 6)),
            f"box = 'all'{inside}": prepare("all"),
        },
    )


def test_a_function_has_one_resolution_and_one_fit_and_no_file() -> None:
    preprocessing = CallablePreprocessing(small, moments=(MEAN, STD))
    image = noise(60, 40)
    assert preprocessing.at(SIDE, 8, 8) is preprocessing and not preprocessing.smaller(8, 8)
    assert preprocessing.fit == "squash" and preprocessing.prepare(image, 8, 8, "squash")
    with pytest.raises(ConfigError, match=r"resolution = 64: .*expected resolution = 32, or a vitviz\.Preprocessing"):
        preprocessing.at(64, 8, 8)
    with pytest.raises(ConfigError, match="fit = 'native': preprocessing = a function sets it"):
        preprocessing.prepare(image, 8, 8, "native")
    with pytest.raises(ConfigError, match=r"no file can hold; expected a vitviz\.Preprocessing"):
        preprocessing.to_dict()
    assert np.array_equal(
        preprocessing.fit_image(image, 8, 8)[0], image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    )


def test_it_can_be_pickled_with_its_function() -> None:
    image = noise(60, 40)
    one = CallablePreprocessing(small, (0, 0, 60, 40))
    expected, found = (each.prepare(image, 8, 8) for each in (one, pickle.loads(pickle.dumps(one))))
    assert torch.equal(found.pixels, expected.pixels) and found.geometry == expected.geometry

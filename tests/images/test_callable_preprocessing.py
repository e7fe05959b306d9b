"""A function of the user's makes the input; test pictures tell where it lies on the picture, or that it is refused."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageChops, ImageOps

from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.images import measuring
from vitviz.images.callable_preprocessing import GREYS, CallablePreprocessing
from vitviz.images.measuring import noise

pytestmark = pytest.mark.slow

SIDE = 32
PHOTOS = [(640, 480), (333, 500), (1000, 90)]


@pytest.fixture(autouse=True)
def few_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "REPETITIONS", 12)


def standardise(image: Image.Image) -> torch.Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in ([0.1, 0.5, 0.4], [0.2, 0.3, 0.25]))
    return (torch.from_numpy(np.array(image)).movedim(2, 0) / 255 - mean) / std


def small(image: Image.Image, resampling: int = Image.Resampling.BILINEAR, **options: Any) -> torch.Tensor:
    return standardise(image.resize((SIDE, SIDE), resampling, **options))


def prepared(function: Callable[..., Any], size: tuple[int, int]) -> tuple[Any, Image.Image]:
    image = noise(*size)
    return CallablePreprocessing(function).prepare(image, 8, 8), image


# Where the input lies.


def in_centre(image: Image.Image) -> torch.Tensor:
    left, top = image.width // 2 - 45, image.height // 2 - 45
    return small(image.crop((left, top, left + 90, top + 90)))


PLACES: dict[str, tuple[Callable[[Image.Image], torch.Tensor], Callable[[int, int], tuple[float, ...]]]] = {
    "whole": (small, lambda width, height: (0, 0, width, height)),
    "nearest": (lambda image: small(image, Image.Resampling.NEAREST), lambda width, height: (0, 0, width, height)),
    "blue first": (lambda image: small(image).flip(0), lambda width, height: (0, 0, width, height)),
    "a part": (
        lambda image: small(image, box=(0, image.height / 4, image.width / 3, image.height * 0.75)),
        lambda width, height: (0, height / 4, width / 3, height * 0.75),
    ),
    "cropped first": (
        in_centre,
        lambda width, height: (width // 2 - 45, height // 2 - 45, width // 2 + 45, height // 2 + 45),
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_the_input_is_the_functions_own_and_its_place_is_measured(name: str) -> None:
    function, place = PLACES[name]
    preprocessing = CallablePreprocessing(function)
    for size in PHOTOS:
        image = noise(*size)
        result = preprocessing.prepare(image, 8, 8)
        assert torch.equal(result.pixels[0], function(image))
        assert result.image is image
        # Of the input's 32 pixels, each edge is right to a tenth.
        scale = np.ptp(np.reshape(result.geometry.box, (2, 2)), axis=0) / SIDE
        offsets = np.abs(np.subtract(result.geometry.box, place(*size))) / np.tile(scale, 2)
        assert offsets.max() < 0.1, (size, result.geometry.box)
    expected = ((0.1, 0.5, 0.4), (0.2, 0.3, 0.25))
    order = slice(None, None, -1 if name == "blue first" else 1)
    assert (preprocessing.mean[order], preprocessing.std[order]) == expected


def letterbox(image: Image.Image) -> torch.Tensor:
    return small(ImageOps.pad(image, (max(image.size),) * 2, color=(10, 20, 30)))


@pytest.mark.parametrize("size", [(640, 480), (333, 500), (60, 90), (5, 9)])
def test_padding_belongs_to_the_picture_that_is_shown(size: tuple[int, int]) -> None:
    result, image = prepared(letterbox, size)
    assert torch.equal(result.pixels[0], letterbox(image))
    side = max(size)
    assert abs(result.image.width - side) <= 1 and abs(result.image.height - side) <= 1
    np.testing.assert_allclose(result.geometry.box, (0, 0, side, side), atol=0.02 * side)
    corner, middle = result.image.getpixel((0, 0)), result.image.getpixel((side // 2, side // 2))
    assert np.abs(np.subtract(corner, (10, 20, 30))).max() <= 1
    assert middle in [image.getpixel((size[0] // 2 + x, size[1] // 2 + y)) for x in (-1, 0) for y in (-1, 0)]


def test_an_input_of_each_pictures_own_size_is_followed() -> None:
    preprocessing = CallablePreprocessing(standardise)
    for size in ((80, 40), (16, 24), (8, 9)):
        result = preprocessing.prepare(noise(*size), 8, 8)
        assert result.pixels.shape == (1, 3, size[1] // 8 * 8, size[0] // 8 * 8)
        assert result.geometry.box == (0, 0, size[0] // 8 * 8, size[1] // 8 * 8)
    with pytest.raises(ImageError, match="an input of 5×9 pixels; expected at least one patch, 8×8"):
        preprocessing.prepare(noise(9, 5), 8, 8)


# How it is called.


def as_array(image: Image.Image) -> np.ndarray:
    return np.asarray(small(image)).transpose(1, 2, 0)


def of_tensor(pixels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.interpolate(pixels[None], (SIDE, SIDE), mode="bilinear", antialias=True)[0]


def by_name(*, image: np.ndarray) -> dict[str, np.ndarray]:
    return {"image": as_array(Image.fromarray(image))}


def reducing(image: Image.Image) -> torch.Tensor:
    image.thumbnail((SIDE, SIDE))
    return small(image)


CALLS: dict[str, tuple[Callable[..., Any], Callable[[Image.Image], torch.Tensor]]] = {
    "an array with channels last": (as_array, small),
    "image=array": (by_name, small),
    "a batch of one in a mapping": (lambda image: {"pixel_values": [np.asarray(small(image))]}, small),
    "double precision": (lambda image: small(image).double()[None], small),
    "a tensor": (of_tensor, lambda image: of_tensor(torch.from_numpy(np.array(image)).movedim(2, 0) / 255)),
    "changes the picture": (reducing, lambda image: reducing(image.copy())),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_is_called_in_the_way_that_works(name: str) -> None:
    function, expected = CALLS[name]
    result, image = prepared(function, (150, 111))
    torch.testing.assert_close(result.pixels[0], expected(image))
    assert image.size == (150, 111)


# What is refused, by its name.


def trimmed(border: str) -> Callable[[Image.Image], torch.Tensor]:
    def trim(image: Image.Image) -> torch.Tensor:
        difference = ImageChops.difference(image, Image.new("RGB", image.size, border))
        return small(image.crop(difference.getbbox() or (0, 0, *image.size)))

    return trim


def by_itself(image: Image.Image) -> torch.Tensor:
    values = small(image)
    return (values - values.mean()) / (values.std() + 1e-6)


def often_mirrored(image: Image.Image, random: np.random.Generator = np.random.default_rng(0)) -> torch.Tensor:  # noqa: B008
    return small(ImageOps.mirror(image) if random.random() < 0.5 else image)


def mirror_padded(image: Image.Image) -> torch.Tensor:
    return small(Image.fromarray(np.pad(np.array(image), ((40, 40), (60, 60), (0, 0)), "reflect")))


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "random": (often_mirrored, "it is random: .*expected the transform of evaluation"),
    "mirrored": (lambda image: small(ImageOps.mirror(image)), "it mirrors or turns the picture"),
    "turned by a quarter": (
        lambda image: small(image.transpose(Image.Transpose.ROTATE_90)),
        "it turns or distorts the picture",
    ),
    "turned by 5 degrees": (lambda image: small(image.rotate(5)), "it shows no upright rectangle of the picture"),
    "halves changed": (lambda image: small(image).roll(SIDE // 2, 2), "it mirrors or turns the picture"),
    "columns shuffled": (
        lambda image: small(image)[:, :, torch.randperm(SIDE, generator=torch.Generator().manual_seed(0))],
        "it turns or distorts the picture|it mirrors or turns the picture",
    ),
    "mirrored border": (mirror_padded, "it continues the picture beyond its border"),
    **{f"{border} trimmed": (trimmed(border), "it treats each picture by its content") for border in GREYS},
    "equalised": (lambda image: small(ImageOps.equalize(image)), "changes levels by the picture's content"),
    "each by itself": (by_itself, "it standardises each picture by itself"),
    "inverted": (lambda image: -small(image), "it inverts black and white"),
    "gamma": (lambda image: (small(image) + 2) ** 0.5, "it changes the contrast of grey levels"),
    "levels": (lambda image: torch.from_numpy(np.array(image)).movedim(2, 0), "of shape .* of uint8; expected a tens"),
    "a picture": (lambda image: image.resize((SIDE, SIDE)), "it returns an Image; expected a tensor"),
    "ten crops": (lambda image: small(image).expand(10, 3, SIDE, SIDE), r"a tensor of shape \(10, 3, 32, 32\)"),
    "both kinds of tensors": (lambda pixels: pixels[:, :SIDE, :SIDE] * 0.5 - 0.1, "tensors of levels .* other results"),
    "fails for some": (lambda image: small(image) + 1 // image.getextrema()[0][1], "ZeroDivisionError: "),
    "fails": (lambda image: 1 / 0, "it fails: with a PIL image, ZeroDivisionError: .*expected a function from a PIL"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(ConfigError, match=f"^preprocessing = a function: .*({message})"):
        CallablePreprocessing(function)


def test_a_picture_that_the_function_treats_otherwise_is_refused() -> None:
    def picky(image: Image.Image) -> torch.Tensor:
        if image.width < 100:
            raise ValueError("too narrow")
        return small(ImageOps.mirror(image) if image.height < 100 else image)

    preprocessing = CallablePreprocessing(picky)
    for size, message in {(99, 120): "ValueError: too narrow", (120, 99): "it mirrors or turns the picture"}.items():
        with pytest.raises(ImageError, match=message):
            preprocessing.prepare(noise(*size), 8, 8)


@pytest.mark.parametrize("middle", [(200, 150, 500, 350), (0, 0, 640, 240), (40, 300, 200, 460)])
def test_a_picture_of_which_its_content_chooses_the_part_is_refused(middle: tuple[int, int, int, int]) -> None:
    preprocessing = CallablePreprocessing(trimmed("orange"))
    content = noise(middle[2] - middle[0], middle[3] - middle[1])
    for border in ("teal", "orange"):
        image = Image.new("RGB", (640, 480), border)
        image.paste(content, middle)
        if border == "orange":
            with pytest.raises(ImageError, match="it takes another part of this picture than of test pictures"):
                preprocessing.prepare(image, 8, 8)
        else:
            assert preprocessing.prepare(image, 8, 8).geometry.box == (0, 0, 640, 480)


def by_contrast(image: Image.Image) -> torch.Tensor:
    return small(ImageOps.autocontrast(image))


def in_steps(image: Image.Image) -> torch.Tensor:
    return standardise(image.resize((SIDE, SIDE)).resize((7 * SIDE, 7 * SIDE)))


def of_blue(image: Image.Image) -> torch.Tensor:
    return small(image.getchannel("B").convert("RGB"), Image.Resampling.NEAREST)


def limited(image: Image.Image) -> torch.Tensor:
    scale = min(40 / min(image.size), 80 / max(image.size))
    resized = image.resize((math.ceil(image.width * scale), math.ceil(image.height * scale)))
    return standardise(resized.crop(((resized.width - 24) // 2, 0, (resized.width + 24) // 2, 24)))


@pytest.mark.parametrize("function", [by_contrast, in_steps, of_blue, limited, letterbox])
@pytest.mark.parametrize("size", [(640, 480), (1000, 90), (120, 500), (17, 9)])
def test_pictures_of_any_content_are_found_in_their_place(
    function: Callable[[Image.Image], torch.Tensor], size: tuple[int, int]
) -> None:
    dot, gradient = Image.new("RGB", size, "navy"), Image.linear_gradient("L").resize(size)
    dot.putpixel((size[0] // 5, size[1] // 7), (255, 255, 0))
    pale = Image.blend(noise(*size), Image.new("RGB", size, "pink"), 0.8)
    preprocessing = CallablePreprocessing(function)
    for image in (noise(*size), pale, gradient.convert("RGB"), dot, Image.new("RGB", size, "teal")):
        assert torch.equal(preprocessing.prepare(image, 8, 8).pixels[0], function(image))


def test_what_is_small_is_placed_by_its_shape_unless_its_pixels_count() -> None:
    with pytest.raises(ImageError, match="what it takes of a small picture depends on its size in pixels"):
        prepared(lambda image: small(ImageOps.expand(image, 20)), (5, 9))


def test_a_function_has_one_resolution_and_one_fit_and_no_file() -> None:
    preprocessing = CallablePreprocessing(small)
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
    one = CallablePreprocessing(small)
    expected, found = (each.prepare(image, 8, 8) for each in (one, pickle.loads(pickle.dumps(one))))
    assert torch.equal(found.pixels, expected.pixels) and found.geometry == expected.geometry

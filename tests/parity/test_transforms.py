"""Transforms and processors of real packages: what their fields state has the same pixels, and the rest is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.reference_packages import open_clip, timm
from tests.support.heatmaps import noise
from vitviz.images.callable_preprocessing import CallablePreprocessing, call
from vitviz.images.preprocessing import Preprocessing
from vitviz.weights.modules.preparation import read_function

pytestmark = pytest.mark.parity
SIZES = [(97, 61), (40, 333), (31, 30), (1, 1), (1, 7), (300, 200)]


def draw(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    crop = int(random.integers(16, 40))
    return {
        "crop": crop,
        "resize": crop + int(random.integers(0, 12)),
        "mean": [round(value, 3) for value in random.uniform(0.1, 0.9, 3).tolist()],
        "std": [round(value, 3) for value in random.uniform(0.1, 0.9, 3).tolist()],
        "interpolation": str(random.choice(["nearest", "bilinear", "bicubic"])),
    }


def torchvision_v1(crop: int, resize: int, mean: list[float], std: list[float], interpolation: str) -> Any:
    from torchvision import transforms

    mode = transforms.InterpolationMode(interpolation)
    steps = [transforms.Resize(resize, mode), transforms.CenterCrop(crop), transforms.ToTensor()]
    return transforms.Compose([*steps, transforms.Normalize(mean, std)])


def torchvision_v2(crop: int, resize: int, mean: list[float], std: list[float], interpolation: str) -> Any:
    from torchvision.transforms import InterpolationMode, v2

    mode = InterpolationMode(interpolation.replace("nearest", "nearest-exact"))
    steps = [v2.PILToTensor(), v2.Resize((resize, resize), mode), v2.CenterCrop(crop)]
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])


def levels_first(crop: int, resize: int, mean: list[float], std: list[float], interpolation: str) -> Any:
    from torchvision.transforms import InterpolationMode, v2

    mode = InterpolationMode(interpolation.replace("nearest", "bilinear"))
    steps = [v2.RGB(), v2.ToImage(), v2.ToDtype(torch.uint8, scale=True), v2.Resize(resize, mode)]
    float_steps = v2.Compose([v2.CenterCrop((crop, crop)), v2.ToDtype(torch.float32, scale=True)])
    return v2.Compose([*steps, float_steps, v2.Normalize(mean, std)])


def floats_first(crop: int, resize: int, mean: list[float], std: list[float], interpolation: str) -> Any:
    from torchvision import transforms

    mode = transforms.InterpolationMode(interpolation.replace("nearest", "bilinear"))
    # torchvision standardises all channels by a single mean.
    steps = [transforms.ToTensor(), transforms.Resize((resize, crop), mode, antialias=True)]
    return transforms.Compose([*steps, transforms.Normalize(mean[0], std[0])])


def preset(crop: int, resize: int, mean: list[float], std: list[float], interpolation: str) -> Any:
    from torchvision.transforms import InterpolationMode, _presets

    mode = InterpolationMode(interpolation)
    return _presets.ImageClassification(
        crop_size=crop, resize_size=resize, mean=tuple(mean), std=tuple(std), interpolation=mode
    )


def of_timm(crop: int, resize: int, mean: list[float], std: list[float], interpolation: str) -> Any:
    arguments = {"mean": mean, "std": std, "interpolation": interpolation, "crop_mode": "center"}
    return timm.data.create_transform((3, crop, crop + 4), False, crop_pct=crop / resize, **arguments)


def squashed_by_timm(crop: int, resize: int, mean: list[float], std: list[float], interpolation: str) -> Any:
    arguments = {"mean": mean, "std": std, "interpolation": interpolation}
    return timm.data.create_transform((3, crop, crop), False, crop_pct=crop / resize, crop_mode="squash", **arguments)


def of_open_clip(crop: int, resize: int, mean: list[float], std: list[float], interpolation: str) -> Any:
    return open_clip.image_transform(crop, False, tuple(mean), tuple(std), interpolation="bicubic")


KNOWN = (
    *(torchvision_v1, torchvision_v2, levels_first, floats_first, preset),
    *(of_timm, squashed_by_timm, of_open_clip),
)


def read(function: Callable[..., Any]) -> Preprocessing:
    return read_function(function, None, None)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("make", KNOWN)
def test_a_transform_that_states_what_it_does_is_vitvizs_own_with_the_same_pixels(
    make: Callable[..., Any], seed: int
) -> None:
    values = draw(seed)
    transform = make(**values)
    preprocessing = read(transform)
    assert type(preprocessing) is Preprocessing
    if make is not floats_first:
        assert [[*preprocessing.mean], [*preprocessing.std]] == [values["mean"], values["std"]]
    for size in SIZES:
        image = noise(*size)
        pixels = preprocessing.prepare(image, 1, 1).pixels[0]
        torch.testing.assert_close(pixels, call(transform, image), rtol=0, atol=5e-6, msg=str(size))


def reduced(image: Image.Image) -> Image.Image:
    image.thumbnail((1024, 1024))
    return image


def unusual() -> dict[str, Any]:
    from torchvision import transforms
    from torchvision.transforms import v2

    resize, to_tensor = transforms.Resize((32, 32)), transforms.ToTensor()
    normalise = transforms.Normalize([0.4] * 3, [0.2] * 3)
    nearest = v2.InterpolationMode.NEAREST
    crop = transforms.CenterCrop(28)
    return {
        "resized without antialias": [to_tensor, transforms.Resize((32, 32), antialias=False), normalise],
        "nearest of tensors": [to_tensor, transforms.Resize((32, 32), nearest), normalise],
        "cropped before": [transforms.CenterCrop(60), resize, to_tensor, normalise],
        "cropped beyond": [transforms.Resize(24), crop, to_tensor, normalise],
        "an oblong of the shorter side": [transforms.Resize(32), transforms.CenterCrop((24, 28)), to_tensor, normalise],
        "standardised twice": [resize, to_tensor, normalise, normalise],
        "resized twice": [transforms.Resize((64, 64)), resize, to_tensor, normalise],
        "padded": [transforms.Pad(20), resize, to_tensor, normalise],
        "grey": [resize, transforms.Grayscale(3), to_tensor, normalise],
        "limited": [transforms.Resize(32, max_size=64), crop, to_tensor, normalise],
        "reduced first": [transforms.Lambda(reduced), resize, to_tensor, normalise],
        "of a class of one's own": [type("Resize", (transforms.Resize,), {"__module__": "mine"})(32), crop, to_tensor],
        "not scaled": [resize, v2.PILToTensor(), v2.ToDtype(torch.float32), normalise],
    }


@pytest.mark.parametrize("name", unusual())
def test_any_other_transform_is_called(name: str) -> None:
    from torchvision import transforms

    transform = transforms.Compose(unusual()[name])
    preprocessing = read(transform)
    assert isinstance(preprocessing, CallablePreprocessing)
    for size in [(97, 61), (64, 333), (1300, 900)]:
        image = noise(*size)
        assert torch.equal(preprocessing.prepare(image, 1, 1).pixels[0], transform(image.copy()))

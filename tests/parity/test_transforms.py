"""Transforms of real packages: vitviz's own preprocessing where it gives the same pixels, else the transform itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.reference_packages import open_clip, timm, transformers
from vitviz.errors.kinds import ImageError
from vitviz.images.callable_preprocessing import CallablePreprocessing
from vitviz.images.measuring import noise
from vitviz.images.preprocessing import Preprocessing
from vitviz.images.transforms import as_transform
from vitviz.weights.modules.preparation import recognise

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


def of_timm(crop: int, resize: int, mean: list[float], std: list[float], interpolation: str) -> Any:
    return timm.data.create_transform(
        (3, crop, crop + 4), False, crop_pct=crop / resize, mean=mean, std=std, interpolation=interpolation
    )


def of_transformers(crop: int, resize: int, mean: list[float], std: list[float], interpolation: str) -> Any:
    resample = {"nearest": 0, "bilinear": 2, "bicubic": 3}[interpolation]
    sizes = {"size": {"shortest_edge": resize}, "crop_size": {"height": crop, "width": crop}}
    return transformers.CLIPImageProcessor(**sizes, image_mean=mean, image_std=std, resample=resample)


def of_open_clip(crop: int, resize: int, mean: list[float], std: list[float], interpolation: str) -> Any:
    return open_clip.image_transform(crop, False, tuple(mean), tuple(std), interpolation="bicubic")


KNOWN = (torchvision_v1, torchvision_v2, of_timm, of_transformers, of_open_clip)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("make", KNOWN)
def test_a_known_transform_becomes_vitvizs_own_with_the_same_pixels(make: Callable[..., Any], seed: int) -> None:
    values = draw(seed)
    transform = make(**values)
    preprocessing = recognise(transform)
    assert type(preprocessing) is Preprocessing
    np.testing.assert_allclose([preprocessing.mean, preprocessing.std], [values["mean"], values["std"]], rtol=1e-6)
    call = as_transform(transform, noise(64, 48))
    for size in SIZES:
        image = noise(*size)
        pixels = preprocessing.prepare(image, 1, 1).pixels[0]
        torch.testing.assert_close(pixels, call(image), rtol=0, atol=5e-6, msg=str(size))


def reduced(image: Image.Image) -> Image.Image:
    image.thumbnail((1024, 1024))
    return image


def unusual() -> dict[str, Any]:
    from torchvision import transforms

    resize, normalise, to_tensor = (
        transforms.Resize((32, 32)),
        transforms.Normalize([0.4] * 3, [0.2] * 3),
        transforms.ToTensor(),
    )
    return {
        "resized without antialias": [to_tensor, transforms.Resize((32, 32), antialias=False), normalise],
        "cropped before": [transforms.CenterCrop(60), resize, to_tensor, normalise],
        "padded": [transforms.Pad(20), resize, to_tensor, normalise],
        "grey": [resize, transforms.Grayscale(3), to_tensor, normalise],
        "limited": [transforms.Resize(32, max_size=64), transforms.CenterCrop(28), to_tensor, normalise],
        "reduced first": [transforms.Lambda(reduced), resize, to_tensor, normalise],
    }


@pytest.mark.parametrize("name", unusual())
def test_any_other_transform_is_run_itself(name: str) -> None:
    from torchvision import transforms

    transform = transforms.Compose(unusual()[name])
    preprocessing = recognise(transform)
    assert isinstance(preprocessing, CallablePreprocessing)
    for size in [(97, 61), (64, 333), (1300, 900)]:
        image = Image.blend(noise(*size), Image.new("RGB", size, "pink"), 0.5)
        assert torch.equal(preprocessing.prepare(image, 1, 1).pixels[0], transform(image.copy()))


def test_what_treats_few_pictures_otherwise_is_run_itself() -> None:
    def turned(image: Image.Image) -> torch.Tensor:
        upright = image.transpose(Image.Transpose.ROTATE_90) if image.height > max(500, image.width) else image
        return torch.from_numpy(np.array(upright.resize((32, 32)))).movedim(2, 0) / 255

    preprocessing = recognise(turned)
    assert preprocessing.prepare(noise(300, 450), 1, 1).geometry.box == (0, 0, 300, 450)
    with pytest.raises(ImageError, match="it turns or distorts the picture"):
        preprocessing.prepare(noise(300, 1500), 1, 1)


def test_a_processor_that_limits_the_longer_side_is_run_itself() -> None:
    size = {"shortest_edge": 32, "longest_edge": 64}
    processor = transformers.CLIPImageProcessor(size=size, crop_size={"height": 28, "width": 28})
    preprocessing, image = recognise(processor), noise(300, 1500)
    prepared = preprocessing.prepare(image, 1, 1)
    assert torch.equal(prepared.pixels[0], as_transform(processor, image)(image))
    # Of 13×64 pixels, the crop shows the whole width and 28 of the height, with a border at both sides.
    assert prepared.image.width > 600 and abs(prepared.geometry.box[3] - prepared.geometry.box[1] - 656) < 15


def test_naflex_keeps_the_aspect_ratio() -> None:
    processor = transformers.Siglip2ImageProcessor(patch_size=4, max_num_patches=64)
    preprocessing = recognise(processor)
    assert (preprocessing.fit, preprocessing.rounding, preprocessing.height) == ("native", "transformers", 32)
    call = as_transform(processor, noise(64, 48))
    for size in [(97, 61), (40, 333)]:
        image = noise(*size)
        torch.testing.assert_close(preprocessing.prepare(image, 4, 4).pixels[0], call(image), rtol=0, atol=5e-6)


def test_albumentations() -> None:
    albumentations = pytest.importorskip("albumentations")
    steps = [albumentations.SmallestMaxSize(40), albumentations.CenterCrop(32, 32), albumentations.Normalize()]
    transform = albumentations.Compose(steps)
    preprocessing = recognise(transform)
    image = noise(97, 61)
    expected = torch.from_numpy(transform(image=np.array(image))["image"]).movedim(2, 0)
    assert torch.equal(preprocessing.prepare(image, 1, 1).pixels[0], expected)

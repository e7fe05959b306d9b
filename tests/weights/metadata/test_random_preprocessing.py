"""Random files for pictures: each gives the pixels of the package that reads it, or is refused by the entry's name."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.reference_packages import open_clip, timm, transformers
from tests.support.long_runs import share_of
from tests.support.sidecars import files_beside, read_preprocessing
from vitviz.errors.kinds import CheckpointError
from vitviz.images.preprocessing import Preprocessing
from vitviz.weights.metadata.image_processors import PROCESSORS
from vitviz.weights.metadata.sidecars import Sidecars

pytestmark = pytest.mark.parity

# What is drawn in the suite and by `make test-long`, of each package.
DRAWS, LONG = 100, 5000
SEED = 18
# Divides few of the sizes.
PATCH = 7
# The rest is refused.
MOST = {"transformers": 0.35, "timm": 0.6, "open_clip": 0.6}

Draw = Callable[[random.Random], tuple[dict[str, Any], int]]
Reference = Callable[[dict[str, Any], Image.Image, Path], torch.Tensor]


def photo(draw: random.Random, channels: int, near: int) -> Image.Image:
    """Noise, in which every other filter shows, of sizes that resizing and cropping may trip over."""
    sizes = [(1, 1000), (1000, 1), (3, 2), (1, 1), (997, 503), (near, near), (near, near + 1), (near * 2, near * 2)]
    sizes += [(draw.randint(1, 90), draw.randint(1, 90)) for _ in range(6)]
    sizes += [(draw.randint(90, 400), draw.randint(90, 400)) for _ in range(4)]
    width, height = draw.choice(sizes)
    noise = np.random.default_rng(draw.getrandbits(32)).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    # A grey picture, as a one-channel model gets it.
    return Image.merge("RGB", [image.convert("L")] * 3) if channels == 1 else image


def maybe(draw: random.Random, chance: float, **entries: Any) -> dict[str, Any]:
    return entries if draw.random() < chance else {}


def moments(draw: random.Random, name: str, channels: int, low: float) -> dict[str, Any]:
    values = [round(draw.uniform(low, 0.9), 3) for _ in range(channels)]
    odd = draw.choice([values[0], values[0], values * 2, values[:1], 0])
    # A file that does not say is one of three channels.
    return maybe(draw, 0.6 if channels == 3 else 0.95, **{name: odd if draw.random() < 0.1 else values})


# transformers.


def sides(draw: random.Random) -> Any:
    first, second = draw.randint(20, 80), draw.randint(20, 80)
    if draw.random() < 0.1:
        unread = {"shortest_edge": first, "longest_edge": first + second}
        return draw.choice([unread, {"longest_edge": first}, {"max_height": first, "max_width": second}])
    square, oblong = {"height": first, "width": first}, {"height": first, "width": second}
    return draw.choice([first, [first, second], square, oblong, {"shortest_edge": first}, {"shortest_edge": first}])


def smaller(draw: random.Random, size: Any) -> Any:
    """A crop, most often one that fits into the size."""
    stated = list(size.values()) if isinstance(size, dict) else size if isinstance(size, list) else [size]
    part = 1.2 if draw.random() < 0.1 else draw.choice([1, 0.9, 0.8, 0.5])
    height, width = (max(1, int(side * part)) for side in (stated * 2)[:2])
    if draw.random() < 0.2:
        return draw.choice([{"height": height, "width": max(1, height - 3)}, {"shortest_edge": height}])
    return draw.choice([height, [height, width]]) if height == width else {"height": height, "width": width}


def draw_transformers(draw: random.Random) -> tuple[dict[str, Any], int]:
    name, size, channels = draw.choice(list(PROCESSORS)), sides(draw), draw.choice([3, 3, 3, 1])
    values = {
        "image_processor_type": name + draw.choice(["", "", "Fast"]),
        **maybe(draw, 0.9, size=size),
        **maybe(draw, 0.7, crop_size=smaller(draw, size)),
        **maybe(draw, 0.5, do_center_crop=draw.random() < 0.6),
        **maybe(draw, 0.3, default_to_square=draw.random() < 0.5),
        **maybe(draw, 0.2, do_resize=draw.random() < 0.8),
        **maybe(draw, 0.3, do_rescale=draw.random() < 0.6),
        **maybe(draw, 0.3, rescale_factor=draw.choice([1 / 255, 0.00392156862745098, 1 / 127.5, 0.0078, 1])),
        **maybe(draw, 0.3, do_normalize=draw.random() < 0.6),
        **maybe(draw, 0.6, resample=draw.choice([0, 1, 2, 3] * 5 + [4, 5])),
        **maybe(draw, 0.1, do_pad=draw.random() < 0.3),
        **maybe(draw, 0.5 if channels == 3 else 0.9, do_convert_rgb=draw.random() < 0.5 and channels == 3),
        **moments(draw, "image_mean", channels, 0),
        **moments(draw, "image_std", channels, 0.1),
        **maybe(draw, 0.2, processor_class="CLIPProcessor", image_seq_length=7),
        **maybe(draw, 0.1, data_format="channels_first", input_data_format="channels_last"),
        **maybe(draw, 0.1, feature_extractor_type="ViTFeatureExtractor"),
        **maybe(draw, 0.05, size_divisor=32),
    }
    if "shortest_edge" in str(values.get("size")) and draw.random() < 0.8:
        values |= {"do_center_crop": True, "crop_size": smaller(draw, size)}
    if name == "CLIPImageProcessor":
        values |= maybe(draw, 0.7, use_square_size=draw.random() < 0.8)
    if name == "Siglip2ImageProcessor":
        values |= {"patch_size": draw.choice([4, 7, 16]), "max_num_patches": draw.choice([9, 16, 49, 60, 61])}
    return values, channels


def transformers_pixels(values: dict[str, Any], image: Image.Image, folder: Path) -> torch.Tensor:
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    found = transformers.AutoImageProcessor.from_pretrained(folder)(image, return_tensors="pt")
    pixels = found["pixel_values"].float()
    if "spatial_shapes" not in found:
        return pixels
    rows, columns = found["spatial_shapes"][0].tolist()
    side = values["patch_size"]
    patches = pixels[:, : rows * columns].unflatten(2, (side, side, -1)).unflatten(1, (rows, columns))
    return patches.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


# timm.


def draw_timm(draw: random.Random) -> tuple[dict[str, Any], int]:
    height, channels = draw.randint(20, 80), draw.choice([3, 3, 3, 1])
    width = height if draw.random() < 0.6 else draw.randint(20, 80)
    whole = height + draw.randint(0, 40)
    values = {
        "input_size": [channels, height, width],
        **maybe(draw, 0.8, crop_pct=draw.choice([1.0, 0.9, 0.875, 0.95, height / whole, height / whole])),
        **maybe(draw, 0.05, crop_pct=draw.choice([1.1, 0])),
        **maybe(draw, 0.6, crop_mode=draw.choice(["center", "squash"] * 4 + ["border", "pad"])),
        **maybe(draw, 0.8, interpolation=draw.choice(["nearest", "bilinear", "bicubic", "lanczos", *RARE])),
        **moments(draw, "mean", channels, 0),
        **moments(draw, "std", channels, 0.1),
        **maybe(draw, 0.5, test_input_size=[3, 96, 96], test_crop_pct=1.0, min_input_size=[3, 16, 16]),
        **maybe(draw, 0.5, fixed_input_size=True, num_classes=7, pool_size=None, first_conv="patch_embed.proj"),
        **maybe(draw, 0.05, crop_border_pixels=3),
    }
    return values, channels


RARE = ("box", "hamming", "random")


def timm_pixels(values: dict[str, Any], image: Image.Image, folder: Path) -> torch.Tensor:
    data = timm.data.resolve_data_config({}, pretrained_cfg=timm.models.PretrainedCfg(**values).to_dict())
    return timm.data.create_transform(**data, is_training=False)(image)[None]


# open_clip.


def draw_open_clip(draw: random.Random) -> tuple[dict[str, Any], int]:
    height = draw.randint(20, 80)
    side = height if draw.random() < 0.6 else [height, draw.randint(20, 80)]
    values = {
        **maybe(draw, 0.8, resize_mode=draw.choice(["shortest", "squash"] * 4 + ["longest", "crop"])),
        **maybe(draw, 0.8, interpolation=draw.choice(["bicubic", "bilinear", "random"] * 3 + ["nearest"])),
        **moments(draw, "mean", 3, 0),
        **moments(draw, "std", 3, 0.1),
        **maybe(draw, 0.3, size=30, fill_color=7, mode="RGB"),
        **maybe(draw, 0.05, mode="L"),
    }
    return {"model_cfg": {"vision_cfg": {"image_size": side}}, "preprocess_cfg": values}, 3


def open_clip_pixels(values: dict[str, Any], image: Image.Image, folder: Path) -> torch.Tensor:
    size = values["model_cfg"]["vision_cfg"]["image_size"]
    base = open_clip.transform.PreprocessCfg()
    merged = open_clip.transform.merge_preprocess_dict(base, values["preprocess_cfg"])
    merged = {**merged, "size": size if isinstance(size, int) else tuple(size)}
    return open_clip.transform.image_transform_v2(open_clip.transform.PreprocessCfg(**merged), is_train=False)(image)[
        None
    ]


PACKAGES: dict[str, tuple[Draw, Reference]] = {
    "transformers": (draw_transformers, transformers_pixels),
    "timm": (draw_timm, timm_pixels),
    "open_clip": (draw_open_clip, open_clip_pixels),
}


def sidecars_of(package: str, values: dict[str, Any]) -> Sidecars:
    if package == "timm":
        return files_beside(config={"architecture": "vit", "pretrained_cfg": values})
    return files_beside(preprocessor=values) if package == "transformers" else files_beside(open_clip=values)


def prepare(package: str, values: dict[str, Any], channels: int, size: tuple[int, int], image: Image.Image) -> Any:
    """vitviz's pixels; the patch is one that does not divide every size."""
    sidecars, side = sidecars_of(package, values), values.get("patch_size", PATCH)
    unused = Preprocessing(8, 8, (0.1,) * channels, (0.9,) * channels, "native")
    grid = size[0] // side * side, size[1] // side * side
    preprocessing, *_ = read_preprocessing(sidecars, *grid, unused, (side, side))
    for part in ("config", "preprocessor", "open_clip"):
        # The entries of networks and classes are others' to read.
        getattr(sidecars, part).skip(("architecture", "model_cfg"))
        getattr(sidecars, part).check_unread()
    return preprocessing.prepare(image, side, side).pixels


def run(package: str, count: int, seed: int, folder: Path) -> Counter[str]:
    draw, outcomes = random.Random(f"{package} {seed}"), Counter[str]()
    make, reference = PACKAGES[package]
    for number in range(count):
        values, channels = make(draw)
        image = photo(draw, channels, 40)
        try:
            expected = reference(values, image.convert("L") if channels == 1 else image, folder)
            size = (expected.shape[2], expected.shape[3])
        except Exception as error:
            expected, size = None, (42, 42)
            reason = f"{type(error).__name__}: {error}"
        case = f"{package}, draw {number} of seed {seed}: {values}, picture of {image.size}"
        try:
            found = prepare(package, values, channels, size, image)
        except CheckpointError as error:
            entry = re.search(r"(\w+) = ", str(error))
            assert entry, f"{case}: refused without an entry's name: {error}"
            outcomes[f"refused: {entry[1]}"] += 1
            continue
        assert expected is not None, f"{case}: the package refuses it: {reason}"
        assert expected.shape[1] == channels, f"{case}: the package makes {expected.shape[1]} channels"
        # A network reads the whole patches.
        side = values.get("patch_size", PATCH)
        expected = expected[:, :, : size[0] // side * side, : size[1] // side * side]
        assert found.shape == expected.shape, case
        off = (found - expected).abs() / expected.abs().clamp(min=1)
        assert off.max() <= 1e-5, f"{case}: {off.max():.2g} off"
        outcomes["exact"] += 1
    assert outcomes["exact"] > MOST[package] * count, outcomes
    return outcomes


@pytest.mark.parametrize("package", PACKAGES)
def test_random_files_give_the_packages_pixels_or_are_refused_by_name(package: str, tmp_path: Path) -> None:
    run(package, DRAWS, SEED, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("package", PACKAGES)
def test_thousands_of_random_files(package: str, tmp_path: Path) -> None:
    print(run(package, share_of(LONG), SEED + 1, tmp_path))

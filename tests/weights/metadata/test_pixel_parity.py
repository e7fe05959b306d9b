"""A checkpoint's files give the pixels that timm, transformers and open_clip would have made from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from einops import rearrange
from PIL import Image

from tests.reference_packages import open_clip, timm, transformers
from tests.support.sidecars import files_beside, read_preprocessing
from vitviz.errors.kinds import CheckpointError
from vitviz.images.preprocessing import Preprocessing
from vitviz.weights.metadata.image_processors import MODEL_TYPES, PROCESSORS
from vitviz.weights.metadata.normalisations import CLIP
from vitviz.weights.metadata.sidecars import Sidecars

pytestmark = pytest.mark.parity

SIZES = [(451, 300), (300, 451), (97, 131), (500, 375), (224, 224), (33, 1000), (1000, 33)]
UNUSED = Preprocessing(8, 8, (0.1,) * 3, (0.9,) * 3, "native")


def picture(width: int, height: int) -> Image.Image:
    """Noise, in which a shift by one pixel or another filter shows everywhere."""
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


def read(folder: Path, height: int, width: int, patch: int = 1) -> Preprocessing:
    preprocessing, *_ = read_preprocessing(Sidecars.read(folder), height, width, UNUSED, (patch, patch))
    return preprocessing


def whole_input(preprocessing: Preprocessing, size: tuple[int, int]) -> torch.Tensor:
    """All that the package makes of a picture, of which a network may not read the last rows and columns."""
    return preprocessing.prepare(picture(*size), 1, 1).pixels


def read_json(
    folder: Path, name: str, values: dict[str, Any], height: int, width: int, patch: int = 1
) -> Preprocessing:
    (folder / name).write_text(json.dumps(values))
    return read(folder, height, width, patch)


# timm.


def timm_pixels(config: dict[str, Any], image: Image.Image) -> torch.Tensor:
    data = timm.data.resolve_data_config({}, pretrained_cfg=config)
    return timm.data.create_transform(**data, is_training=False)(image)[None]


def same_as_timm(folder: Path, config: dict[str, Any], sizes: list[tuple[int, int]]) -> None:
    _, height, width = config["input_size"]
    preprocessing = read_json(folder, "config.json", {"architecture": "vit", "pretrained_cfg": config}, height, width)
    for size in sizes:
        expected = timm_pixels(config, picture(*size))
        assert torch.equal(whole_input(preprocessing, size), expected), size


def timm_configs() -> list[dict[str, Any]]:
    """One of every way in which timm prepares the pictures of a Vision Transformer."""
    names = [name for name in timm.list_pretrained() if "vit" in name or name.startswith(("eva", "beit", "deit"))]
    configs = [timm.models.get_pretrained_cfg(name).to_dict(remove_source=True) for name in names]
    keys = ("input_size", "crop_pct", "crop_mode", "interpolation", "mean", "std")
    return list({tuple(config[key] for key in keys): config for config in configs}.values())


def test_every_vision_transformer_of_timm_is_prepared_as_by_timm(tmp_path: Path) -> None:
    configs = timm_configs()
    modes = {config["crop_mode"] for config in configs}
    assert len(configs) > 50 and modes == {"center", "squash", "border"}
    for config in configs:
        if config["crop_mode"] == "border":
            with pytest.raises(CheckpointError, match="crop_mode = 'border': expected 'center' or 'squash'"):
                same_as_timm(tmp_path, config, [])
        else:
            same_as_timm(tmp_path, config, [(451, 300)])


# transformers. What AutoImageProcessor builds is the reference: processors that resize tensors with torchvision.

IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
SAVED = {
    "ViT": ("ViTImageProcessor", {}),
    "ViT at 384, not normalised": ("ViTImageProcessor", {"size": {"height": 384, "width": 384}, "do_normalize": False}),
    "DINO": ("ViTImageProcessor", {**IMAGENET, "resample": 3}),
    "DeiT": ("DeiTImageProcessor", IMAGENET),
    "DeiT, odd": ("DeiTImageProcessor", {"size": 301, "crop_size": 224}),
    "BEiT": ("BeitImageProcessor", {}),
    "DINOv2": ("BitImageProcessor", {**IMAGENET, "size": {"shortest_edge": 256}}),
    "CLIP": ("CLIPImageProcessor", {}),
    "Kosmos-2": ("CLIPImageProcessor", {"use_square_size": True, "do_center_crop": False}),
    "CLIP, odd": ("CLIPImageProcessor", {"size": {"shortest_edge": 231}, "crop_size": 224, "resample": 1}),
    "SigLIP": ("SiglipImageProcessor", {}),
    "SigLIP, oblong": ("SiglipImageProcessor", {"size": {"height": 192, "width": 256}, "resample": 0}),
}
# As files were before the classes that read them were renamed and learnt to write their sizes.
OLD = {
    "ViT": {"feature_extractor_type": "ViTFeatureExtractor", "do_normalize": True, "do_resize": True}
    | {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2, "size": 224},
    "DeiT": {"feature_extractor_type": "DeiTFeatureExtractor", "do_center_crop": True, "crop_size": 224, "size": 256}
    | {"do_normalize": True, "do_resize": True, "resample": 3, **IMAGENET},
    "CLIP": {"feature_extractor_type": "CLIPFeatureExtractor", "do_center_crop": True, "crop_size": 224, "size": 224}
    | {"do_normalize": True, "do_resize": True, "resample": 3, "image_mean": CLIP[0], "image_std": CLIP[1]},
    "BEiT": {"feature_extractor_type": "BeitFeatureExtractor", "do_center_crop": False, "crop_size": 224, "size": 224}
    | {"do_normalize": True, "do_resize": True, "resample": 3, "image_mean": 0.5, "image_std": 0.5},
}


def transformers_pixels(folder: Path, image: Image.Image) -> torch.Tensor:
    return transformers.AutoImageProcessor.from_pretrained(folder)(image, return_tensors="pt")["pixel_values"]


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.shape == expected.shape and bool(((found - expected).abs() <= 1e-5 * expected.abs().clamp(1)).all())


def input_size(pixels: torch.Tensor) -> tuple[int, int]:
    return pixels.shape[2], pixels.shape[3]


@pytest.mark.parametrize("name", PROCESSORS)
def test_every_entry_that_an_image_processor_saves_is_accounted_for(name: str, tmp_path: Path) -> None:
    # Classes that had no image processor of their own when their models were published wrote all entries, null or not.
    for values in ({}, dict.fromkeys(("crop_size", "device", "do_pad", "pad_size", "return_tensors"))):
        getattr(transformers, name)(**values).save_pretrained(tmp_path)
        sidecars = Sidecars.read(tmp_path)
        read_preprocessing(sidecars, 224, 224, UNUSED, (16, 16))
        assert sidecars.preprocessor.check_unread() == []


def test_every_entry_of_timms_configurations_is_accounted_for() -> None:
    for config in timm_configs():
        sidecars = files_beside({"pretrained_cfg": config})
        if config["crop_mode"] != "border":
            read_preprocessing(sidecars, 224, 224, UNUSED, (16, 16))
            assert set(sidecars.config.inner_or_empty("pretrained_cfg").unread()) <= {
                "label_names",
                "label_descriptions",
            }


@pytest.mark.parametrize("backend", ["", "Pil"])
@pytest.mark.parametrize("case", SAVED)
def test_the_file_that_an_image_processor_saves(case: str, backend: str, tmp_path: Path) -> None:
    name, arguments = SAVED[case]
    getattr(transformers, name + backend)(**arguments).save_pretrained(tmp_path)
    for size in SIZES:
        expected = transformers_pixels(tmp_path, picture(*size))
        preprocessing = read(tmp_path, *input_size(expected))
        assert same(whole_input(preprocessing, size), expected), size


@pytest.mark.parametrize("case", OLD)
def test_the_file_that_a_feature_extractor_saved(case: str, tmp_path: Path) -> None:
    preprocessing = read_json(tmp_path, "preprocessor_config.json", OLD[case], 224, 224)
    for size in SIZES:
        expected = transformers_pixels(tmp_path, picture(*size))
        assert same(whole_input(preprocessing, size), expected), size


def test_values_of_dinov3_are_not_rounded_to_levels(tmp_path: Path) -> None:
    transformers.DINOv3ViTImageProcessor(resample=3).save_pretrained(tmp_path)
    preprocessing = read(tmp_path, 224, 224)
    for size in SIZES:
        prepared = preprocessing.prepare(picture(*size), 16, 16)
        assert same(prepared.pixels, transformers_pixels(tmp_path, picture(*size))), size
    unrounded = prepared.pixels[0] * torch.tensor(preprocessing.std)[:, None, None]
    levels = (unrounded + torch.tensor(preprocessing.mean)[:, None, None]) * 255
    assert (levels - levels.round()).abs().max() > 0.4
    # A picture has whole levels, and none beyond black and white.
    seen, geometry = preprocessing.fit_image(picture(*size), 16, 16)
    assert geometry == prepared.geometry
    assert np.abs(np.asarray(seen).transpose(2, 0, 1) - levels.clamp(0, 255).numpy()).max() <= 0.501


@pytest.mark.parametrize(("patch", "most"), [(16, 256), (14, 100), (16, 1024)])
def test_naflex_has_the_patches_of_siglip_2(patch: int, most: int, tmp_path: Path) -> None:
    processor = transformers.Siglip2ImageProcessor(patch_size=patch, max_num_patches=most)
    processor.save_pretrained(tmp_path)
    # At whatever size the network was trained: its positions are resized to every picture's grid.
    preprocessing = read(tmp_path, 9 * patch, 9 * patch, patch)
    for size in [*SIZES, (1, 1), (5000, 3)]:
        expected = processor(picture(*size), return_tensors="pt")
        rows, columns = expected["spatial_shapes"][0].tolist()
        pixels = preprocessing.prepare(picture(*size), patch, patch).pixels
        assert input_size(pixels) == (rows * patch, columns * patch)
        patches = rearrange(pixels, "1 channel (row y) (column x) -> (row column) (y x channel)", y=patch, x=patch)
        assert same(patches, expected["pixel_values"][0, : rows * columns]), size


@pytest.mark.parametrize("name", PROCESSORS)
def test_what_a_file_leaves_out_is_the_default_of_its_class(name: str, tmp_path: Path) -> None:
    assert PROCESSORS[name].square == getattr(transformers, name).default_to_square
    getattr(transformers, name)().save_pretrained(tmp_path)
    for height, width in ((256, 256), (224, 224)):
        stated = read(tmp_path, height, width, 16)
        values = {"image_processor_type": name}
        assert read_json(tmp_path, "preprocessor_config.json", values, height, width, 16) == stated
    for written in (name, name + "Fast", name + "Pil", name.replace("ImageProcessor", "FeatureExtractor")):
        values = {"image_processor_type": written}
        assert read_json(tmp_path, "preprocessor_config.json", values, height, width, 16) == stated


def test_a_file_that_names_no_class_is_that_of_the_models_type() -> None:
    for model_type, name in MODEL_TYPES.items():
        known = transformers.models.auto.image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES[model_type]
        assert name in known.values()


# open_clip.


@pytest.mark.parametrize("resize_mode", ["shortest", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "random"])
@pytest.mark.parametrize("side", [224, 257])
def test_open_clips_transform(resize_mode: str, interpolation: str, side: int, tmp_path: Path) -> None:
    config = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]} | {
        "interpolation": interpolation,
        "resize_mode": resize_mode,
    }
    transform = open_clip.image_transform(side, is_train=False, **config)
    preprocessing = read_json(tmp_path, "open_clip_config.json", {"preprocess_cfg": config}, side, side)
    for size in SIZES:
        expected = transform(picture(*size))[None]
        assert torch.equal(whole_input(preprocessing, size), expected), size

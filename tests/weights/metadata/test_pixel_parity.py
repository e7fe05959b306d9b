"""A checkpoint's files give the pixels that timm, transformers and open_clip would have made from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.reference_packages import timm, transformers
from tests.support.sidecars import files_beside, read_preprocessing
from vitviz.images.preprocessing import Preprocessing
from vitviz.weights.metadata.image_processors import MODEL_TYPES, PROCESSORS
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


def read_json(
    folder: Path, name: str, values: dict[str, Any], height: int, width: int, patch: int = 1
) -> Preprocessing:
    (folder / name).write_text(json.dumps(values))
    return read(folder, height, width, patch)


# timm.


def timm_configs() -> list[dict[str, Any]]:
    """One of every way in which timm prepares the pictures of a Vision Transformer."""
    names = [name for name in timm.list_pretrained() if "vit" in name or name.startswith(("eva", "beit", "deit"))]
    configs = [timm.models.get_pretrained_cfg(name).to_dict(remove_source=True) for name in names]
    keys = ("input_size", "crop_pct", "crop_mode", "interpolation", "mean", "std")
    return list({tuple(config[key] for key in keys): config for config in configs}.values())


# transformers. What AutoImageProcessor builds is the reference: processors that resize tensors with torchvision.


# As files were before the classes that read them were renamed and learnt to write their sizes.
def transformers_pixels(folder: Path, image: Image.Image) -> torch.Tensor:
    return transformers.AutoImageProcessor.from_pretrained(folder)(image, return_tensors="pt")["pixel_values"]


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.shape == expected.shape and bool(((found - expected).abs() <= 1e-5 * expected.abs().clamp(1)).all())


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

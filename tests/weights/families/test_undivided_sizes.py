"""Inputs that the patch does not divide: as in the packages, a network reads the whole patches of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitviz
from tests.reference_packages import timm, transformers
from tests.support.reading import read_any
from vitviz.errors.kinds import ConfigError, VitvizError
from vitviz.images.preprocessing import Preprocessing
from vitviz.weights.verify import verify

pytestmark = pytest.mark.parity

# Two patches of 14 pixels and 2 pixels that no patch reads.
SIDE, PATCH = 30, 14


def photo(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def shaken(network: torch.nn.Module) -> torch.nn.Module:
    """With weights that let every mistake show."""
    for parameter in network.parameters():
        parameter.data.normal_(0, 0.1)
    return network.eval()


def write_siglip(folder: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.SiglipVisionConfig(**sizes, image_size=SIDE, patch_size=PATCH)
    shaken(transformers.SiglipVisionModel(config)).save_pretrained(folder)
    transformers.SiglipImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)


def write_timm(folder: Path) -> None:
    network = shaken(timm.create_model("vit_tiny_patch16_224", img_size=SIDE, patch_size=PATCH, num_classes=5, depth=2))
    network.pretrained_cfg["input_size"] = (3, SIDE, SIDE)
    arguments = {"img_size": SIDE, "patch_size": PATCH, "depth": 2}
    timm.models.save_for_hf(network, folder, model_args=arguments, safe_serialization=True)


@pytest.mark.parametrize("write", [write_siglip, write_timm])
def test_the_whole_chain_is_the_packages(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path)
    reading = read_any(tmp_path)
    assert (reading.model.preprocessing.height, reading.model.preprocessing.width) == (SIDE, SIDE)
    assert reading.model.engine == ("own" if write is write_timm else "module")
    for size in ((90, 60), (31, 200)):
        found = verify(reading, photo(*size))
        assert found.exact, found.sentence
    layout = vitviz.analyze(photo(90, 60), reading.model).trace.layout
    assert (layout.grid_height, layout.grid_width) == (2, 2)


@pytest.mark.parametrize("fit", ["squash", "crop"])
def test_patches_lie_on_the_part_that_is_read(fit: str) -> None:
    preprocessing = Preprocessing(SIDE, SIDE, (0.5,) * 3, (0.5,) * 3, fit, 0.6, squash_fraction=0.6)
    for across, down in ((0, 0), (0, 1), (1, 0), (1, 1)):
        # The corner of 50 pixels of the resized picture at which the crop of 30 begins.
        x, y = (100 + (10 + 14 * step + 7) * 2 for step in (across, down))
        image = Image.new("RGB", (300, 300))
        # The whole 50 resized pixels are the 100 from pixel 100 on, in a picture of that part only.
        image = image.crop((100, 100, 200, 200))
        image.paste((255, 255, 255), (x - 102, y - 102, x - 98, y - 98))
        prepared = preprocessing.prepare(image, PATCH, PATCH)
        light = prepared.pixels[0].sum(0).unflatten(0, (2, PATCH)).unflatten(2, (2, PATCH)).sum((1, 3))
        assert divmod(int(light.argmax()), 2) == (down, across)
        assert prepared.geometry.patch_at(x - 100, y - 100, 2, 2) == (down, across)
        assert prepared.geometry.box == pytest.approx((20, 20, 76, 76))
        assert prepared.geometry.patch_at(77, 77, 2, 2) is None, "the pixels that no patch reads"


def test_the_trained_size_is_a_resolution_and_others_are_multiples_of_the_patch() -> None:
    own = Preprocessing(384, 384, (0.5,) * 3, (0.5,) * 3, "squash")
    assert own.at(384, 14, 14) is own
    assert own.at(378, 14, 14).input_size(photo(9, 9), 14, 14) == (378, 378)
    assert own.input_size(photo(9, 9), 14, 14) == (378, 378)
    assert list(own.smaller(14, 14))[:2] == [378, 364]
    with pytest.raises(ConfigError, match="resolution = 383: expected a multiple of the patch's 14 pixels: 378 or 392"):
        own.at(383, 14, 14)


@pytest.mark.parametrize("channels", [2, 4, 13])
def test_other_channels_are_refused_by_one_sentence_everywhere(channels: int, tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224"
    network = timm.create_model(name, img_size=32, num_classes=5, depth=1, in_chans=channels).eval()
    torch.save(network.state_dict(), tmp_path / "colours.pth")
    arguments = {"img_size": 32, "depth": 1, "in_chans": channels}
    timm.models.save_for_hf(network, tmp_path / "folder", safe_serialization=True, model_args=arguments)
    overrides = {"heads": 3, "activation": "gelu", "pooling": "cls", "final_norm": "before pooling"}
    names = [f"class {index}" for index in range(5)]
    values = (0.5,) * channels
    ways: list[Callable[[], Any]] = [
        lambda: vitviz.load(tmp_path / "colours.pth", **overrides, norm_epsilon=1e-6),
        lambda: vitviz.load(tmp_path / "folder"),
        lambda: vitviz.load(tmp_path / "folder", engine="module"),
        lambda: vitviz.load(network, labels=names),
        lambda: vitviz.load(network, labels=names, normalisation="half", engine="module"),
        lambda: Preprocessing(32, 32, values, values),
    ]
    for way in ways:
        with pytest.raises(VitvizError) as refusal:
            way()
        sentence = f"pictures of {channels} channels; so far, vitviz prepares pictures of 3, red, green and blue, or of"
        assert str(refusal.value).count(sentence) == 1


def test_a_grey_model_is_the_packages_on_a_grey_picture(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, num_channels=1, num_labels=3)
    network = shaken(transformers.ViTForImageClassification(config))
    network.save_pretrained(tmp_path)
    shape = {"height": 32, "width": 32}
    transformers.ViTImageProcessor(size=shape, image_mean=[0.3], image_std=[0.2]).save_pretrained(tmp_path)
    grey = photo(90, 60).convert("L")
    pixels = transformers.AutoImageProcessor.from_pretrained(tmp_path)(grey, return_tensors="pt")["pixel_values"]
    model = vitviz.load(tmp_path)
    prepared = model.preprocessing.prepare(vitviz.open_image(grey), 8, 8)
    assert torch.allclose(prepared.pixels, pixels, rtol=1e-5, atol=1e-5)
    with torch.inference_mode():
        expected = network(pixels).logits
        assert torch.allclose(model.network(prepared.pixels), expected, rtol=1e-5, atol=1e-5)

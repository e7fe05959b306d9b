"""What a watched module of a real package says of itself, and modules that are refused as what they are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.parity.random_draws import silent
from tests.reference_packages import open_clip, timm, transformers
from tests.support.heatmaps import noise
from tests.support.refusals import check_refusals
from vitviz import ConfigError, Model, analyze, load

pytestmark = pytest.mark.parity
SMALL = {"img_size": 32, "num_classes": 5}


def test_timm_says_everything() -> None:
    with silent():
        module = timm.create_model("vit_tiny_patch16_224", depth=1).eval()
        transform = timm.data.create_transform(**timm.data.resolve_model_data_config(module))
    model = load(module)
    assert model.name == "vit_tiny_patch16_224"
    assert (model.preprocessing.height, model.preprocessing.mean) == (224, (0.5, 0.5, 0.5))
    assert (model.preprocessing.crop_fraction * 248) // 1 == 224 - (model.preprocessing.crop_fraction * 248 < 224)
    assert model.network.config.prefix == ("cls",)
    assert len(model.labels) == 1000
    by_transform = load(module, preprocessing=transform).preprocessing
    image = noise(300, 260)
    assert torch.equal(by_transform.prepare(image, 16, 16).pixels, model.preprocessing.prepare(image, 16, 16).pixels)


def test_transformers_says_its_labels_and_its_processor_the_rest() -> None:
    options = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    names = {0: "cat", 1: "dog", 2: "owl"}
    config = transformers.ViTConfig(image_size=48, patch_size=16, id2label=names, **options)
    with silent():
        module = transformers.ViTForImageClassification(config).eval()
        processor = transformers.ViTImageProcessor(size={"height": 48, "width": 48}, image_mean=[0.1, 0.2, 0.3])
    model = load(module, preprocessing=processor)
    assert model.labels == ("cat", "dog", "owl")
    assert (model.preprocessing.height, model.preprocessing.mean) == (48, (0.1, 0.2, 0.3))
    assert (model.preprocessing.fit, model.preprocessing.interpolation) == ("squash", "bilinear")
    larger = model.network.encode(torch.randn(1, 3, 64, 80)).traces[0]
    assert (larger.layout.grid_height, larger.layout.grid_width) == (4, 5)


def test_a_function_is_called_and_its_box_says_what_it_shows() -> None:
    with silent():
        module = timm.create_model("vit_tiny_patch16_224", depth=1, **SMALL).eval()
        grey = timm.create_model("vit_tiny_patch16_224", depth=1, in_chans=1, **SMALL).eval()

    def squashed(image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image.resize((32, 32)))).movedim(2, 0) / 127.5 - 1

    picture = noise(64, 48)
    model = load(module, preprocessing=squashed, box=lambda width, height: (0, 0, width, height))
    analysis = analyze(picture, model)
    assert analysis.prepared.geometry.box == (0, 0, 64, 48) and analysis.prepared.assumptions == ()
    assert torch.equal(analysis.prepared.pixels[0], squashed(picture))
    assert "preprocessing = a function" in model._repr_html_()
    unplaced = analyze(picture, load(module, preprocessing=squashed, normalisation="half"))
    assert np.array_equal(unplaced.prepared.image, picture.resize((32, 32)))
    assert "box= of vitviz.load" in unplaced._repr_html_()
    transform = timm.data.create_transform((3, 32, 32), False)
    check_refusals(
        ConfigError,
        {
            "vit.*: box: of a function alone that": lambda: load(module, preprocessing=transform, box=(0, 0, 9, 9)),
            "vit_tiny.*: box: of a function alone": lambda: load(module, box=(0, 0, 9, 9)),
            "vit_tiny.* normalisation='imagenet'": lambda: load(grey),
        },
    )


def test_open_clip_says_how_its_tower_prepares_pictures() -> None:
    with silent():
        clip = open_clip.CLIP(24, {"image_size": 48, "patch_size": 16, "width": 64, "layers": 1}, {"width": 64})
        module = clip.visual.eval()
        module.preprocess_cfg = {"size": 48, "mode": "RGB", "mean": (0.1,) * 3, "std": (0.5,) * 3}
        model = load(module)
    assert model.labels == ()
    assert (model.preprocessing.height, model.preprocessing.mean) == (48, (0.1, 0.1, 0.1))


def assumed(model: Model) -> list[str]:
    return [text for text in model.assumptions if text.startswith("preprocessing ")]


def test_timms_default_is_assumed_and_a_folder_that_states_it_is_not(tmp_path: Path) -> None:
    with silent():
        module = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=5).eval()
        timm.models.save_for_hf(module, tmp_path / "whole", safe_serialization=True, model_args={"depth": 1, **SMALL})
        stated = timm.create_model(f"local-dir:{tmp_path / 'whole'}").eval()
    [assumption] = assumed(load(module))
    assert "crop to 0.9, bicubic" in repr(load(module)) and "crop" not in repr(load(stated))
    assert "crop to 0.9, bicubic" in assumption and "only the package's default states mean, std" in assumption
    assert assumed(load(stated)) == assumed(load(tmp_path / "whole")) == []
    stated_config = {**timm.data.resolve_model_data_config(module), "input_size": (3, 48, 48)}
    assert assumed(load(module, preprocessing=stated_config)) == []
    module = timm.create_model("vit_tiny_patch16_224", depth=1, dynamic_img_size=True).eval()
    assert load(module, preprocessing=stated_config).preprocessing.height == 48
    # A configuration that somebody wrote by hand.
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    del config["pretrained_cfg"]["crop_pct"]
    (tmp_path / "whole" / "config.json").write_text(json.dumps(config))
    [assumption] = assumed(load(tmp_path / "whole"))
    assert "crop to 0.875" in assumption

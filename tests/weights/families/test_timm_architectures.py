"""The table of timm's names says what the timm that is installed does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.timm_architectures import describe, names
from tests.reference_packages import timm
from tests.support.reading import read_checkpoint
from vitviz.weights.families.timm import SIGNATURE
from vitviz.weights.families.timm_architectures import DATA, architectures, digest, matching_architectures
from vitviz.weights.metadata.rules import PreprocessingRule

pytestmark = pytest.mark.parity

ROWS = json.loads(DATA.read_text())
# One of each kind: a plain one, two of one shape, other classes, arguments of every sort.
SAMPLE = (
    *("vit_tiny_patch16_224", "deit3_small_patch16_224", "deit_tiny_distilled_patch16_224"),
    *("vit_base_patch16_siglip_224", "vit_small_patch14_reg4_dinov2", "vit_giant_patch14_dinov2"),
    *("vit_base_patch16_rope_ape_224", "vit_base_patch16_rpn_224", "eva02_tiny_patch14_224", "qwen3_vit_88m"),
)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_row_is_what_timm_makes(name: str) -> None:
    assert describe(name) == ROWS[name]


@pytest.mark.long
def test_every_row_is_what_timm_makes() -> None:
    assert {name: row for name in names() if (row := describe(name)) is not None} == ROWS


def prepared_by_timm(cfg: Any) -> tuple[Any, ...]:
    config = timm.data.resolve_data_config(pretrained_cfg=cfg.to_dict())
    fit = {"center": "crop", "squash": "squash"}[config["crop_mode"]]
    sizes = config["mean"], config["std"], config["input_size"][1:]
    return (*sizes, fit, config["crop_pct"], config["interpolation"])


def prepared_by(rule: PreprocessingRule) -> tuple[Any, ...]:
    stated = rule.preprocessing
    sizes = stated.mean, stated.std, (stated.height, stated.width)
    return (*sizes, stated.fit, getattr(stated, f"{stated.fit}_fraction"), stated.interpolation)


def test_pictures_are_prepared_as_timm_does_by_default_and_for_every_tag() -> None:
    count = 0
    for name in timm.list_models():
        row = architectures().get(name)
        if row is not None:
            default = timm.get_pretrained_cfg(name)
            assert prepared_by(row.transform()) == prepared_by_timm(default), name
            assert row.transform().source == f"timm's default for {name}"
            for tag, cfg in timm.models._registry._model_default_cfgs[name].cfgs.items():
                assert prepared_by(row.transform(tag)) == prepared_by_timm(cfg), f"{name}.{tag}"
                count += 1
    assert count > 400


def test_a_stated_name_prepares_pictures_as_timm_does_for_it(tmp_path: Path) -> None:
    path = tmp_path / "leaves.pth"
    torch.save({"epoch": 12, "model": timm.create_model("test_vit", num_classes=5).state_dict()}, path)
    reading = read_checkpoint(path, architecture="test_vit")
    preprocessing = reading.model.preprocessing
    assert (preprocessing.mean, preprocessing.crop_fraction, preprocessing.height) == ((0.5,) * 3, 0.95, 160)
    (check,) = (check for check in reading.checks if check.fact == "preprocessing")
    assert check.assumed and check.source.startswith(
        "timm's default for test_vit; no file beside the checkpoint says it"
    )
    assert [text.partition(" ")[0] for text in reading.model.assumptions] == ["preprocessing"], "the grid is no guess"


def test_a_stated_name_says_nothing_of_classes_and_channels(tmp_path: Path) -> None:
    module = timm.create_model("test_vit", num_classes=5, in_chans=1).eval()
    torch.save(module.state_dict(), tmp_path / "grey.pth")
    model = read_checkpoint(tmp_path / "grey.pth", architecture="test_vit").model
    pixels = torch.randn(1, 1, 160, 160)
    with torch.no_grad():
        torch.testing.assert_close(model.network(pixels), module(pixels))
    assert model.preprocessing.mean == model.preprocessing.std == (0.5,)
    source = "timm's default for test_vit, with mean and std 0.5 for grey pictures; no file"
    assert source in model.card["preprocessing"]


def test_shapes_are_alike_whatever_the_classifier_and_the_depth_counts() -> None:
    shapes = {f"blocks.{layer}.norm1.weight": (8,) for layer in range(3)} | {"pos_embed": (1, 5, 8)}
    assert digest(shapes) == digest({**shapes, "head.weight": (7, 8), "head.bias": (7,)})
    assert digest(shapes) != digest({**shapes, "blocks.3.norm1.weight": (8,)})
    assert digest(shapes) != digest({**shapes, "pos_embed": (1, 10, 8)})
    assert matching_architectures(shapes) == []


def test_a_signature_is_a_key_that_state_dicts_of_timm_have() -> None:
    with torch.device("meta"):
        keys = timm.create_model("vit_tiny_patch16_224").state_dict().keys()
    assert set(SIGNATURE) <= keys

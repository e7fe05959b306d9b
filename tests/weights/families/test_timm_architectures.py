"""The table of timm's names says what the timm that is installed does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.timm_architectures import describe, names
from tests.reference_packages import timm
from tests.support.reading import read_checkpoint
from vitviz.weights.families.timm import SIGNATURES
from vitviz.weights.families.timm_architectures import architectures, digest, matching_architectures
from vitviz.weights.families.timm_arguments import CLASSES, Arguments, facts_of
from vitviz.weights.metadata.rules import PreprocessingRule
from vitviz.weights.metadata.settings import Settings

pytestmark = pytest.mark.parity

# One of each kind: a plain one, two of one shape, other classes, arguments of every sort.
SAMPLE = (
    *("vit_tiny_patch16_224", "deit3_small_patch16_224", "deit_tiny_distilled_patch16_224"),
    *("vit_small_patch16_dinov3", "vit_base_patch16_siglip_224", "vit_small_patch14_reg4_dinov2"),
    *("vit_base_patch16_rope_ape_224", "vit_base_patch16_rpn_224", "eva02_tiny_patch14_224", "qwen3_vit_88m"),
)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_row_is_what_timm_makes(name: str) -> None:
    described = describe(name)
    assert described is not None
    row = architectures()[name]
    assert (row.cls, dict(row.arguments), row.shapes, list(row.classes), row.cfg, row.tags) == (
        described["class"],
        described["arguments"],
        described["shapes"],
        described.get("classes", []),
        described.get("pretrained_cfg", {}),
        described.get("tags", {}),
    )


@pytest.mark.long
def test_every_row_is_what_timm_makes() -> None:
    for name in set(names()) & architectures().keys():
        test_a_row_is_what_timm_makes(name)


def prepared_by_timm(cfg: Any) -> tuple[Any, ...]:
    config = timm.data.resolve_data_config(pretrained_cfg=cfg.to_dict())
    fit = {"center": "crop", "squash": "squash"}[config["crop_mode"]]
    sizes = config["mean"], config["std"], config["input_size"][1:]
    return (*sizes, fit, config["crop_pct"], config["interpolation"])


def prepared_by(rule: PreprocessingRule) -> tuple[Any, ...]:
    stated = rule.arguments
    sizes = stated["mean"], stated["std"], rule.size
    return (*sizes, stated["fit"], stated[f"{stated['fit']}_fraction"], stated["interpolation"])


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


@pytest.mark.parametrize("name", architectures())
def test_every_architecture_is_read_whole_or_refused(name: str) -> None:
    row = architectures()[name]
    refused = row.cls not in CLASSES
    try:
        overrides = facts_of(Arguments(row, Settings({}, "model_args"), "mine"))
    except Exception as error:
        refused = True
        assert str(error).startswith("mine: timm's ") and name in str(error)
    else:
        assert {"heads", "activation", "norm_epsilon", "pooling", "final_norm"} <= overrides.keys()
    assert refused == (name not in READ)


# As many as timm's own classes of plain Vision Transformers make.
READ = {
    name
    for name, row in architectures().items()
    if row.cls in CLASSES
    and not row.arguments.keys() & {"block_fn", "embed_layer", "attn_layer", "scale_attn_norm", "use_post_norm"}
    and not row.arguments.keys() & {"use_pre_transformer_norm", "num_kv_heads", "pool_include_prefix"}
    and not str(row.arguments.get("norm_layer")).casefold().startswith(("timm.rms", "rms"))
    and not (row.arguments.get("use_rot_pos_emb") and row.arguments.get("rope_type") != "dinov3")
}


def test_shapes_are_alike_whatever_the_classifier_and_the_depth_counts() -> None:
    shapes = {f"blocks.{layer}.norm1.weight": (8,) for layer in range(3)} | {"pos_embed": (1, 5, 8)}
    assert digest(shapes) == digest({**shapes, "head.weight": (7, 8), "head.bias": (7,)})
    assert digest(shapes) != digest({**shapes, "blocks.3.norm1.weight": (8,)})
    assert digest(shapes) != digest({**shapes, "pos_embed": (1, 10, 8)})
    assert matching_architectures(shapes) == []


def test_a_signature_is_a_key_that_state_dicts_of_timm_have() -> None:
    with torch.device("meta"):
        from tests.reference_packages import timm

        keys = timm.create_model("vit_tiny_patch16_224").state_dict().keys()
    assert set(SIGNATURES[0]) <= keys

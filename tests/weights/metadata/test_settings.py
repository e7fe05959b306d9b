"""Every entry of a configuration is used, known not to matter, or refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.case import randomised
from tests.reference_packages import timm, transformers
from tests.support.reading import read_checkpoint
from vitviz.errors.kinds import CheckpointError
from vitviz.weights.metadata.settings import Settings
from vitviz.weights.read import Reading

pytestmark = pytest.mark.parity

SMALL = {"depth": 2, "img_size": 48, "num_classes": 5}


def settings(**values: Any) -> Settings:
    return Settings(values, "config.json")


def test_what_nobody_read_is_refused_by_name_and_value() -> None:
    config = settings(depth=2, hat="red", inside={"known": 1, "unknown": [1, 2]})
    assert config.get("depth") == 2
    assert config.inner_or_empty("inside").get("known") == 1
    with pytest.raises(CheckpointError) as caught:
        config.check_unread()
    assert str(caught.value) == (
        "config.json: hat = 'red', inside.unknown = [1, 2]: vitviz does not know what these change; "
        "where it is nothing, say ignore=['config.json:hat', 'config.json:inside.unknown']"
    )
    assert config.check_unread(["config.json:hat", "config.json:inside.*"]) == [
        "config.json:hat",
        "config.json:inside.unknown",
    ]
    config.skip(["hat"])
    config.inner_or_empty("inside").skip(["unk*"])
    assert config.check_unread() == []


# timm's folders: the rows of which numbers were wrong, and what stands for them.


def folder_of(folder: Path, architecture: str = "vit_tiny_patch16_224", **arguments: Any) -> torch.nn.Module:
    model = randomised(timm.create_model(architecture, **{**SMALL, **arguments}))
    for parameter in model.parameters():
        # Wide layers of large weights leave single precision nothing to compare.
        parameter.mul_(0.5 if parameter.ndim > 1 else 1)
    timm.models.save_for_hf(model, folder)
    return model


def largest_difference(model: Any, reading: Reading) -> float:
    pixels = torch.randn(2, 3, *model.patch_embed.img_size)
    with torch.inference_mode():
        theirs, ours = model(pixels), reading.model.network(pixels)
    return float(((theirs - ours).abs() / theirs.abs().clamp(min=1)).max())


@pytest.mark.parametrize(
    "arguments",
    [
        *({"num_heads": heads} for heads in (1, 6, 12)),
        *({"embed_dim": 384, "num_heads": heads} for heads in (3, 12)),
        *({"act_layer": name} for name in ("relu", "silu", "quick_gelu", "gelu_tanh", "GELU")),
        {"global_pool": "avg", "pool_include_prefix": True},
        {"global_pool": "avg", "pool_include_prefix": True, "fc_norm": False, "reg_tokens": 2},
        {"global_pool": "avg", "fc_norm": False},
        {"global_pool": "token", "fc_norm": True},
        {"class_token": False, "global_pool": "avg", "no_embed_class": True, "reg_tokens": 3},
    ],
    ids=str,
)
def test_every_argument_that_timm_saved_counts(arguments: dict[str, Any], tmp_path: Path) -> None:
    model = folder_of(tmp_path, **arguments)
    reading = read_checkpoint(tmp_path)
    assert largest_difference(model, reading) < 1e-5
    assert not [check for check in reading.checks if check.assumed and check.fact != "labels"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"act_layer": "mish"}, "act_layer = 'mish': expected 'gelu', 'gelu_tanh'"),
        ({"norm_layer": "rmsnorm"}, "norm_layer = 'rmsnorm': expected 'layernorm'"),
        ({"global_pool": "max"}, "global_pool = 'max': expected 'token', 'avg' or 'map'"),
        ({"global_pool": "map", "pool_include_prefix": True}, "pool_include_prefix = True"),
        ({"scale_mlp_norm": True}, "surplus 'blocks.0.mlp.norm."),
        ({"architecture": "vit_base_patch16_rope_ape_224"}, "use_rot_pos_emb = True"),
        ({"architecture": "deit_tiny_distilled_patch16_224", "num_classes": 0}, "num_classes = 0"),
        ({"architecture": "vit_base_patch16_rpn_224"}, "block_fn = 'timm.ResPostBlock'"),
        ({"architecture": "qwen3_vit_88m"}, "Qwen3VitClassifier"),
    ],
)
def test_what_makes_another_network_is_refused_by_name(
    arguments: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    folder_of(tmp_path, **arguments)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(tmp_path)
    assert sentence in str(caught.value) and "=…" not in str(caught.value)


@pytest.mark.parametrize("place", ["model_args", "pretrained_cfg", ""])
def test_an_entry_that_nobody_knows_is_refused_until_it_is_left_out(place: str, tmp_path: Path) -> None:
    model, file = folder_of(tmp_path), tmp_path / "config.json"
    config = json.loads(file.read_text())
    (config[place] if place else config)["sparkle"] = 0.5
    file.write_text(json.dumps(config))
    name = ".".join([place, "sparkle"] if place else ["sparkle"])
    with pytest.raises(CheckpointError, match=f"config.json: {name} = 0.5: vitviz does not know what this changes"):
        read_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"ignore: no setting like 'config.json:sprakle'"):
        read_checkpoint(tmp_path, ignore=[f"config.json:{name}", "config.json:sprakle"])
    reading = read_checkpoint(tmp_path, ignore=[f"config.json:{name}"])
    assert reading.ignored[f"config.json:{name}"] == "left out by hand"
    assert largest_difference(model, reading) < 1e-5


@pytest.mark.parametrize("file", ["preprocessor_config.json", "processor_config.json"])
def test_a_processor_that_vitviz_does_not_have_can_be_left_out(file: str, tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8
    )
    transformers.ViTModel(config).save_pretrained(tmp_path)
    processor = {"image_processor_type": "Idefics2ImageProcessor", "do_image_splitting": True}
    nested = processor if file.startswith("pre") else {"image_processor": processor}
    (tmp_path / file).write_text(json.dumps(nested))
    hint = f"ignore=['{file}:*'] prepares pictures by the convention of the family"
    with pytest.raises(CheckpointError, match="image_processor_type = 'Idefics2ImageProcessor'.*" + re.escape(hint)):
        read_checkpoint(tmp_path)
    reading = read_checkpoint(tmp_path, ignore=[f"{file}:*"])
    assert reading.ignored[f"{file}:*"] == "left out by hand"
    assert [check.fact for check in reading.checks if check.assumed] == ["preprocessing"]
    with pytest.raises(CheckpointError, match="ignore: no setting like"):
        read_checkpoint(tmp_path, ignore=[f"{file}:*", "config.json:*"])


def test_an_architecture_that_timm_does_not_have_is_refused_with_one_that_fits(tmp_path: Path) -> None:
    folder_of(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architecture": "vit_tiny_patch16_225"}))
    with pytest.raises(CheckpointError, match=r"architecture in config.json = 'vit_tiny_patch16_225'.*_patch16_224'"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "found"), [({"num_classes": 7}, "classes = 7"), ({"qk_norm": True}, "query_key_norm = True")]
)
def test_what_the_weights_contradict_is_refused(arguments: dict[str, Any], found: str, tmp_path: Path) -> None:
    folder_of(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    if "num_classes" in arguments:
        config |= arguments
    else:
        config["model_args"] |= arguments
    file.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"its config.json says {found}, its weights have"):
        read_checkpoint(tmp_path)

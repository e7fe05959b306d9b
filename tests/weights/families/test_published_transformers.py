"""Published checkpoints of transformers without their configuration: assumed where they agree, asked for otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.reference_packages import transformers
from vitviz.errors.kinds import CheckpointError
from vitviz.weights.conversion.canonical import MatchedCheckpoint
from vitviz.weights.families.published import published_rows
from vitviz.weights.families.transformers.classes import CLASSES
from vitviz.weights.families.transformers.towers import ACTIVATIONS
from vitviz.weights.formats.files import open_weights
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.overrides import NOTHING
from vitviz.weights.recognize import recognize

pytestmark = pytest.mark.parity

TABLES = tuple(
    published_rows(f"transformers {kind}") for kind in ("ViT", "DeiT", "DINOv2", "DINOv3", "CLIP", "SigLIP", "NaFlex")
)


def found_of(model: str, config: str, folder: Path, **options: Any) -> MatchedCheckpoint:
    """A full-size model, of which the file takes no memory, as it is recognised without its configuration."""
    settings = getattr(transformers, config)(**options)
    with torch.device("meta"):
        network = getattr(transformers, model)(settings)
    state = transformers.core_model_loading.revert_weight_conversion(network, network.state_dict())
    # Every tensor is one number, seen many times.
    torch.save({name: torch.zeros(()).expand(tensor.shape) for name, tensor in state.items()}, folder / "alone.bin")
    return recognize(open_weights(folder / "alone.bin"), Sidecars(), NOTHING)


FULL: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "google/vit-base-patch16-224": (
        *("ViTForImageClassification", "ViTConfig", {"num_labels": 1000}),
        {"heads": 12, "activation": "gelu", "norm_epsilon": 1e-12},
    ),
    "facebook/deit-base-distilled-patch16-224": (
        *("DeiTForImageClassificationWithTeacher", "DeiTConfig", {"num_labels": 1000}),
        {"heads": 12, "activation": "gelu", "norm_epsilon": 1e-12},
    ),
    "facebook/dinov2-base": (
        *("Dinov2Model", "Dinov2Config", {"image_size": 518}),
        {"heads": 12, "activation": "gelu", "norm_epsilon": 1e-6},
    ),
    "facebook/dinov2-with-registers-base": (
        *("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", {"image_size": 518, "patch_size": 14}),
        {"heads": 12, "activation": "gelu", "norm_epsilon": 1e-6},
    ),
    "facebook/dinov3-vits16": (
        *("DINOv3ViTModel", "DINOv3ViTConfig", {"num_register_tokens": 4}),
        {"heads": 6, "activation": "gelu", "norm_epsilon": 1e-5},
    ),
    "facebook/dinov3-vits16plus": (
        *("DINOv3ViTModel", "DINOv3ViTConfig", {"use_gated_mlp": True, "hidden_act": "silu", "num_register_tokens": 4}),
        {"heads": 6, "activation": "silu", "norm_epsilon": 1e-5},
    ),
    "google/siglip-base-patch16-224": (
        *("SiglipVisionModel", "SiglipVisionConfig", {}),
        {"heads": 12, "activation": "gelu tanh", "norm_epsilon": 1e-6},
    ),
    "google/siglip2-base-patch16-naflex": (
        *("Siglip2VisionModel", "Siglip2VisionConfig", {}),
        {"heads": 12, "activation": "gelu tanh", "norm_epsilon": 1e-6},
    ),
}


@pytest.mark.parametrize("name", FULL)
def test_what_agreeing_checkpoints_have_is_assumed_and_said(name: str, tmp_path: Path) -> None:
    model, config, options, overrides = FULL[name]
    found = found_of(model, config, tmp_path, **options)
    settled = found.settle(found.family.facts(found))
    assert {fact: settled[fact] for fact in overrides} == overrides
    assumed = {check.fact: check.source for check in found.checks if check.assumed}
    assert overrides.keys() - {"heads"} <= assumed.keys() | {"activation"} and "heads" in assumed
    assert "published checkpoints of these shapes have" in assumed["heads"]
    # The class's own configuration says the same.
    theirs = getattr(transformers, config)(**options)
    assert theirs.num_attention_heads == overrides["heads"] and theirs.layer_norm_eps == overrides["norm_epsilon"]
    assert ACTIVATIONS[theirs.hidden_act] == overrides["activation"]


@pytest.mark.parametrize(
    ("model", "config", "options", "sentence"),
    [
        ("CLIPVisionModel", "CLIPVisionConfig", {}, "openai/clip-vit-base-patch32 has activation='quick gelu'"),
        ("ViTMSNModel", "ViTMSNConfig", {}, "facebook/vit-msn-base has norm_epsilon=1e-06"),
        (
            "ViTForImageClassification",
            "ViTConfig",
            {"num_labels": 10},
            "no published checkpoint that vitviz knows has these shapes",
        ),
        ("SiglipVisionModel", "SiglipVisionConfig", {"vision_use_head": False}, "pass heads=…"),
    ],
)
def test_what_differs_or_is_unknown_is_asked_for(
    model: str, config: str, options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    found = found_of(model, config, tmp_path, **options)
    with pytest.raises(CheckpointError) as caught:
        found.settle(found.family.facts(found))
    assert sentence in str(caught.value)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table[0].name)
def test_a_row_says_what_a_class_of_its_kind_can_have(table: tuple[Any, ...]) -> None:
    epsilons = {kind.defaults["layer_norm_eps"] for kind in CLASSES.values()}
    for row in table:
        assert row.width % row.heads == 0 and row.facts.keys() == {"activation", "norm_epsilon"}
        assert row.facts["norm_epsilon"] in epsilons
    assert len({row.name for row in table}) == len(table)

"""Watched networks in vitviz's own: random configurations have the same numbers, and any other network is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import vitviz
from tests.parity.case import answer_of_vitviz, randomised
from tests.parity.random_draws import silent
from tests.reference_packages import timm, transformers
from tests.support.long_runs import SEED, one_in
from vitviz.errors.kinds import ConfigError
from vitviz.models.vit import VisionTransformer
from vitviz.weights.own_network import as_own
from vitviz.weights.verify import TOLERANCE

pytestmark = pytest.mark.parity

TIMM = (
    *("vit_tiny_patch16_224", "vit_base_patch16_gap_224", "deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"),
    *("deit3_small_patch16_224", "vit_base_patch16_siglip_224", "vit_base_patch16_siglip_gap_224"),
    *("vit_base_patch16_clip_224", "vit_base_patch16_clip_quickgelu_224", "vit_little_patch16_reg4_gap_256"),
    *("vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "vit_small_patch16_dinov3"),
    *("vit_small_patch16_dinov3_qkvb", "vit_small_plus_patch16_dinov3"),
)
# Class, configuration, and what is particular about it.
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ViT": ("ViTForImageClassification", "ViTConfig", {"num_labels": 3}),
    "ViT with a pooler": ("ViTModel", "ViTConfig", {}),
    "DeiT": ("DeiTForImageClassification", "DeiTConfig", {"num_labels": 3}),
    "DeiT with a teacher": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", {"num_labels": 3}),
    "DINOv2": ("Dinov2Model", "Dinov2Config", {}),
    "DINOv2's classifier": ("Dinov2ForImageClassification", "Dinov2Config", {"num_labels": 3}),
    "DINOv2, gated": ("Dinov2Model", "Dinov2Config", {"use_swiglu_ffn": True}),
    "DINOv2 with registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", {}),
    "DINOv3": ("DINOv3ViTModel", "DINOv3ViTConfig", {"num_register_tokens": 4}),
    "DINOv3, gated": ("DINOv3ViTModel", "DINOv3ViTConfig", {"use_gated_mlp": True, "hidden_act": "silu"}),
    "CLIP's tower": ("CLIPVisionModel", "CLIPVisionConfig", {}),
    "CLIP's tower, projected": ("CLIPVisionModelWithProjection", "CLIPVisionConfig", {"projection_dim": 24}),
    "CLIP": ("CLIPModel", "CLIPConfig", {"projection_dim": 24}),
    "SigLIP's tower": ("SiglipVisionModel", "SiglipVisionConfig", {}),
    "SigLIP": ("SiglipModel", "SiglipConfig", {}),
}
TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
TEXT |= {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def sizes(name: str) -> dict[str, int]:
    """Of a network, drawn by the seed."""
    chance = random.Random(f"{SEED} {name}")
    heads, patch = chance.choice((2, 3, 4)), chance.choice((4, 8))
    side, depth = patch * chance.choice((3, 4)) + chance.choice((0, 0, 2)), chance.choice((1, 2, 3))
    return {"heads": heads, "width": 16 * heads, "patch": patch, "side": side, "depth": depth}


def of_timm(name: str, **options: Any) -> Any:
    drawn = sizes(name)
    made = {"img_size": drawn["side"], "patch_size": drawn["patch"], "embed_dim": drawn["width"]}
    return timm.create_model(name, **made, depth=drawn["depth"], num_heads=drawn["heads"], num_classes=5, **options)


def of_transformers(name: str) -> Any:
    model, config, options = TRANSFORMERS[name]
    drawn = sizes(name)
    vision = {"hidden_size": drawn["width"], "num_hidden_layers": drawn["depth"], "patch_size": drawn["patch"]}
    vision |= {"num_attention_heads": drawn["heads"], "image_size": drawn["side"]}
    vision |= {} if "Dinov2" in config else {"intermediate_size": 3 * drawn["width"]}
    made = {"vision_config": vision, "text_config": TEXT} if config in ("CLIPConfig", "SiglipConfig") else vision
    return getattr(transformers, model)(getattr(transformers, config)(**made, **options))


@pytest.mark.parametrize("name", one_in(3, {name: name for name in (*TIMM, *TRANSFORMERS)}))
def test_the_numbers_are_those_of_the_watched_network(name: str) -> None:
    with silent():
        module = of_timm(name) if name in TIMM else of_transformers(name)
        model = vitviz.load(randomised(module), normalisation="half", engine="module")
        own = as_own(model)
    config = model.network.config
    assert isinstance(own.network, VisionTransformer) and as_own(own) is own
    # Not those with which it was compared.
    pixels = torch.randn(2, config.channels, config.image_height, config.image_width)
    with torch.inference_mode():
        (found, weights), (expected, others) = (answer_of_vitviz(each.network, pixels) for each in (own, model))
    assert float(expected.std()) > 0.01 and len(weights) == len(others) == config.depth
    for ours, theirs in ((found, expected), *zip(weights, others, strict=True)):
        torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
    assert own.preprocessing == model.preprocessing and own.labels == model.labels


def test_features_that_are_compared_with_those_of_texts_are_no_classes(tmp_path: Path) -> None:
    small = {"embed_dim": 32, "depth": 1, "num_heads": 2}
    with silent():
        module = timm.create_model("vit_base_patch32_clip_224.openai", **small).eval()
        timm.models.save_for_hf(module, tmp_path / "openai", {"model_args": small}, safe_serialization=True)
        tuned = timm.create_model("vit_base_patch32_clip_224.openai", **small, num_classes=7).eval()
        timm.models.save_for_hf(tuned, tmp_path / "tuned", {"model_args": small}, safe_serialization=True)
    watched = vitviz.load(module)
    for model in (watched, as_own(watched), vitviz.load(tmp_path / "openai")):
        assert model.labels == () and model.network(torch.zeros(1, 3, 224, 224)).shape == (1, 512)
    assert [len(vitviz.load(each).labels) for each in (tuned, tmp_path / "tuned")] == [7, 7]


REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "Swin": (
        "its weights are of another kind",
        lambda: timm.create_model(
            "swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=24, depths=(1, 1, 1, 1), num_classes=5
        ),
    ),
    "EVA-02": ("its weights are of another kind", lambda: of_timm("eva02_tiny_patch14_224")),
    # Weights of the same names as DINOv3's.
    "rotary positions of another kind": (r"its output differs by \d.*", lambda: of_timm("vit_base_patch16_rope_224")),
    "another pooling": (
        "it has 'avgmax', which vitviz's own has not",
        lambda: of_timm("vit_tiny_patch16_224", global_pool="avgmax"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_network_is_refused(name: str) -> None:
    reason, make = REFUSED[name]
    with silent():
        model = vitviz.load(randomised(make()), normalisation="half")
    sentence = "is a network that vitviz's own is not, so that no page can run it"
    with pytest.raises(ConfigError, match=f"^{model.name} {sentence}: {reason}$"):
        as_own(model)

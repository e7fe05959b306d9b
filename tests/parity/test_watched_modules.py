"""Modules of the real packages, watched: the same numbers as vitviz's own network, or as the package's own attention.

Where vitviz's own network can have the weights, every map of one is that of the other. Where it cannot, the attention
weights are those that the package computes by itself, with its fused kernel off.
"""

from __future__ import annotations

import importlib
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.parity.both_ways import both_ways, close
from tests.parity.case import randomised
from tests.parity.coverage.subject import Softmaxes
from tests.parity.package_answers import of_timm, of_transformers
from tests.parity.random_configurations import DRAWN
from tests.parity.random_draws import Draw, silent
from tests.reference_packages import timm, torchvision, transformers
from tests.support.long_runs import check_drawn
from tests.support.modules import windows
from tests.support.reading import read_any
from vitviz import VitvizError, load
from vitviz.attribution import METHODS, AttributionInput
from vitviz.models.targets import class_target
from vitviz.weights.own_network import as_own

pytestmark = pytest.mark.parity

# How many are drawn, and how many of them both networks must open; the second in a long run.
COUNTS = {"timm": (5, 10), "transformers": (5, 10)}
LEAST_COMPARED = {"timm": (2, 3), "transformers": (2, 4)}


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.long)], ids=["some", "many"])
@pytest.mark.parametrize("package", COUNTS)
def test_random_configurations_have_the_same_maps_watched_as_by_vitviz_itself(package: str, many: bool) -> None:
    drawn, outcomes = DRAWN[package], []

    def attempt(draw: Draw) -> None:
        with tempfile.TemporaryDirectory() as name:
            torch.default_generator.manual_seed(0)
            try:
                with silent(), torch.random.fork_rng(devices=[]):
                    case = drawn.make(draw, Path(name))
            except Exception:
                return outcomes.append("impossible")
            try:
                with silent():
                    model = read_any(Path(name), report=lambda _: None).model
                    own, watched = as_own(model), model
                    if own is model:
                        stated = {"preprocessing": own.preprocessing, "labels": own.labels}
                        stated["prefix"] = own.network.config.prefix
                        watched = load(case.reference.module, engine="module", **stated)
            except VitvizError as error:
                assert "differs from what" not in str(error), f"{draw}: {error}"
                return outcomes.append(f"refused: {error}")
            config = own.network.config
            if config.layout(config.image_height, config.image_width).patch_count == 1:
                return outcomes.append("nothing to leave out")
            with silent():
                both_ways(watched, own, torch.randn(1, case.channels, config.image_height, config.image_width))
            outcomes.append("compared")

    check_drawn(drawn.strategy, COUNTS[package][many], attempt)
    assert outcomes.count("compared") >= LEAST_COMPARED[package][many], outcomes


# Families that only watching opens.

SMALL = {"img_size": 48, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
ONLY_WATCHED: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": {},
    "beitv2_base_patch16_224": {"use_shared_rel_pos_bias": True, "use_rel_pos_bias": False},
    "eva02_tiny_patch14_224": {"patch_size": 16},
    "vit_base_patch16_rope_224": {},
    "vit_base_patch16_rope_mixed_224": {},
    "vit_base_patch16_rope_reg1_gap_256": {},
    "vit_pe_core_tiny_patch16_384": {},
    "vit_relpos_small_patch16_224": {},
    "vit_relpos_medium_patch16_cls_224": {},
    "aimv2_large_patch14_224": {"patch_size": 16},
    "deit3_small_patch16_224": {},
}


@pytest.mark.parametrize("name", ONLY_WATCHED)
def test_families_of_timm_have_the_attention_that_timm_computes_without_its_kernel(name: str) -> None:
    with silent():
        module = randomised(timm.create_model(name, **{**SMALL, **ONLY_WATCHED[name]}))
        model = load(module, engine="module")
        pixels = torch.randn(1, 3, 48, 48)
        encoding = model.network.encode(pixels)
        assert torch.equal(encoding.logits, module(pixels))
        expected = of_timm(module, pixels).attention
    trace = encoding.traces[0]
    assert len(expected) == trace.layers == 2
    for layer, weights in enumerate(expected):
        close(trace.weights(layer), weights[0], f"{name}, layer {layer}")
        close(trace.column(layer, (1, 2)), weights[0][..., trace.layout.index((1, 2))], "column")
    assert float((expected[0][0, :, 0] - 1 / expected[0].shape[-1]).abs().max()) > 0.01, "even attention proves nothing"


def materialised_gradients(
    module: torch.nn.Module, pixels: torch.Tensor
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Every layer's attention weights and the gradient of class 0 with respect to them, with timm's kernel off."""
    found: list[torch.Tensor] = []
    attentions = [block.attn for block in module.blocks]  # type: ignore[union-attr]

    def keep(_: Any, __: Any, output: torch.Tensor) -> None:
        output.retain_grad()
        found.append(output)

    hooks = [attention.attn_drop.register_forward_hook(keep) for attention in attentions]
    for attention in attentions:
        attention.fused_attn = False
    module.requires_grad_(True)
    module(pixels)[0, 0].backward()
    module.requires_grad_(False)
    for hook, attention in zip(hooks, attentions, strict=True):
        hook.remove()
        attention.fused_attn = True
    return [each[0].detach() for each in found], [each.grad[0] for each in found if each.grad is not None]


@pytest.mark.parametrize(
    "name", ["beit_base_patch16_224", "eva02_tiny_patch14_224", "vit_relpos_medium_patch16_cls_224"]
)
def test_relevance_of_families_that_only_watching_opens_is_that_of_materialised_attention(name: str) -> None:
    with silent():
        module = randomised(timm.create_model(name, **{**SMALL, **ONLY_WATCHED[name]}))
        model = load(module, engine="module")
        pixels = torch.randn(1, 3, 48, 48)
        matrices, gradients = materialised_gradients(module, pixels)
        inputs = AttributionInput(model.network, pixels, class_target(0, 5))
        found = METHODS["relevance"].compute(inputs.gradients)
        features = model.network.layer_features(pixels, class_target(0, 5), len(matrices) - 1)[0]
        module.blocks[-1].norm1.register_forward_hook(lambda _, __, normed: close(features, normed[0], "Grad-CAM"))
        module(pixels)
    relevance = torch.eye(matrices[0].shape[-1])
    for weights, gradient in zip(matrices, gradients, strict=True):
        relevance = relevance + (weights * gradient).relu().mean(0) @ relevance
    close(found.values.flatten(), relevance[0, 1:], name)
    assert relevance[0, 1:].max() > 1e-4
    for layer, gradient in enumerate(gradients):
        chunks = [chunk.clone() for _, _, chunk in inputs.gradients.in_chunks(layer)]
        scale = float(gradient.abs().max())
        close(torch.cat(chunks, 1) / scale, gradient / scale, f"gradient of layer {layer}")


HF: dict[str, tuple[str, dict[str, Any]]] = {
    "BeitForImageClassification": ("BeitConfig", {"use_relative_position_bias": True}),
    "BeitModel": ("BeitConfig", {"use_shared_relative_position_bias": True}),
    "Data2VecVisionForImageClassification": ("Data2VecVisionConfig", {"use_relative_position_bias": True}),
    "BlipVisionModel": ("BlipVisionConfig", {}),
    "YolosForObjectDetection": ("YolosConfig", {"image_size": [48, 48], "num_detection_tokens": 3}),
}


@pytest.mark.parametrize(("name", "kernel"), list(itertools.product(HF, ["sdpa", "eager"])))
def test_families_of_transformers_have_the_attention_that_it_returns(name: str, kernel: str) -> None:
    config_name, options = HF[name]
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    made = {**sizes, "image_size": 48, "patch_size": 16, "num_labels": 5, **options}
    with silent():
        config = getattr(transformers, config_name)(**made)
        config._attn_implementation = "eager"
        module = randomised(getattr(transformers, name)(config))
        pixels = torch.randn(1, 3, 48, 48)
        expected = of_transformers(module, pixels).attention
        module.set_attn_implementation(kernel)
        kernel = module.config._attn_implementation
        model = load(module, normalisation="half", engine="module")
        trace = model.network.encode(pixels).traces[0]
        assert module.config._attn_implementation == kernel
    assert len(expected) == trace.layers == 2
    count = trace.layout.token_count
    behind = trace.layout.prefix_count - 1
    order = [0, *range(count - behind, count), *range(1, count - behind)]
    for layer, weights in enumerate(expected):
        close(trace.weights(layer), weights[0][:, order][:, :, order], f"layer {layer}")


def test_torchvision_needs_its_transforms_and_then_has_its_own_outputs() -> None:
    module = randomised(torchvision.models.VisionTransformer(48, 16, 2, 4, 32, 48, num_classes=1000))
    with pytest.raises(VitvizError, match=r"the module does not say its normalisation; .*transforms\(\)"):
        load(module)
    preset = torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1.transforms
    transforms = preset(crop_size=48, resize_size=52)
    model = load(module, preprocessing=transforms)
    assert model.labels[0] == "tench, Tinca tinca"
    assert model.assumptions
    pixels = torch.randn(2, 3, 48, 48)
    close(model.network.encode(pixels).logits, module(pixels), "logits")


@pytest.mark.parametrize(
    "name",
    [
        "swin_tiny_patch4_window7_224",
        pytest.param("swinv2_tiny_window8_256", marks=pytest.mark.long),
        pytest.param("hiera_tiny_224", marks=pytest.mark.long),
    ],
)
def test_hierarchical_networks_of_timm_have_the_attention_that_timm_computes(name: str) -> None:
    options: dict[str, Any] = {"num_classes": 5}
    if name.startswith("swin"):
        options |= {"img_size": 64, "window_size": 4, "embed_dim": 48, "depths": (2, 2, 4, 2)}
    else:
        options |= {"img_size": (224, 224), "embed_dim": 32, "stages": (1, 2, 4, 1)}
    with silent():
        module = randomised(timm.create_model(name, **options))
        model = load(module, labels=list("abcde"), patch_size=8 if name.startswith("swin") else 16)
        size = (model.network.config.image_height, model.network.config.image_width)
        pixels = torch.randn(1, 3, *size)
        encoding = model.network.encode(pixels)
        assert torch.equal(encoding.logits, module(pixels))
        expected = softmaxes(module, pixels)
    trace = encoding.traces[0]
    side = trace.layout.grid_height
    if name.startswith("swin"):
        assert (trace.layers, side) == (2, 8)
        for layer, weights in enumerate(expected[2:4]):
            whole = torch.zeros(trace.heads, side**2, side**2)
            for own, places in zip(weights, windows((side, side), (4, 4), 2 * layer), strict=True):
                whole[:, places[:, None], places] = own
            close(trace.weights(layer), whole, f"{name}, layer {layer}")
        return
    # Hiera's tokens stand in the order of three unrollings, each of pairs of rows and columns.
    assert (trace.layers, side) == (3, 14)
    order = torch.arange(56 * 56).view(1, 56, 56, 1)
    for _ in range(3):
        parts, rows, columns, _ = order.shape
        order = order.view(parts, rows // 2, 2, columns // 2, 2, 1).permute(0, 2, 4, 1, 3, 5)
        order = order.reshape(4 * parts, rows // 2, columns // 2, 1)
    pooled = order.view(4, 4, 4 * 49)[0, 0]
    rows, columns = pooled // 56 // 4, pooled % 56 // 4
    back = (rows * 14 + columns).argsort()
    for layer, weights in enumerate([each for each in expected if each.shape[-1] == each.shape[-2] == 196]):
        matrix = weights.reshape(-1, 196, 196)
        close(trace.weights(layer), matrix[:, back][:, :, back], f"{name}, layer {layer}")


def softmaxes(module: torch.nn.Module, pixels: torch.Tensor) -> list[torch.Tensor]:
    """What every softmax of a module of timm gives, with its kernel off."""
    for part in module.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = False
    with Softmaxes() as seen:
        module(pixels)
    return seen.found


PACKED = {
    "Qwen2VisionTransformerPretrainedModel": ("Qwen2VLVisionConfig", {"embed_dim": 32, "hidden_size": 32}),
    "Qwen3VLVisionModel": ("Qwen3VLVisionConfig", {"hidden_size": 32, "deepstack_visual_indexes": [0]}),
}

FAMILIES = {"Qwen2VisionTransformerPretrainedModel": "qwen2_vl", "Qwen3VLVisionModel": "qwen3_vl"}


@pytest.mark.parametrize("name", PACKED)
def test_towers_get_their_patches_as_their_processor_packs_them(name: str) -> None:
    config_name, options = PACKED[name]
    family = importlib.import_module(f"transformers.models.{FAMILIES[name]}.modeling_{FAMILIES[name]}")
    kind = getattr(family, name)
    config = getattr(family, config_name)(
        depth=2, num_heads=4, patch_size=8, spatial_merge_size=2, intermediate_size=48, **options
    )
    with silent():
        module = randomised(kind(config))
        model = load(module, normalisation="half", image_size=32)
        picture = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
        pixels = torch.from_numpy(picture).permute(2, 0, 1)[None] / 127.5 - 1
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        sizes = {"patch_size": 8, "merge_size": 2, "temporal_patch_size": 2, "do_resize": False}
        processor = Qwen2VLImageProcessorPil(image_mean=[0.5] * 3, image_std=[0.5] * 3, **sizes)
        packed = processor(Image.fromarray(picture), return_tensors="pt")
        expected = module(packed["pixel_values"], grid_thw=packed["image_grid_thw"])
        close(model.network.forward(module, pixels)[0], expected.pooler_output, name)
        trace = model.network.encode(pixels).traces[0]
    assert (trace.layout.grid_height, trace.layout.grid_width) == (4, 6)

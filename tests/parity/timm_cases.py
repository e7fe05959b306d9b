"""timm's Vision Transformers, written as ``timm.models.save_for_hf`` writes them or as bare state dicts."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.layers import to_2tuple
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer

from tests.parity.case import Case, Reference, Size, randomised
from tests.parity.package_answers import of_timm
from tests.reference_packages import timm

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 3, "num_heads": 4, "num_classes": 7}
SIZES: tuple[Size, ...] = ((32, 32), (48, 48), (24, 40))
TOLD = {"heads": 4, "activation": "gelu", "norm_epsilon": 1e-6, "pooling": "cls"}


def make(
    folder: Path, cls: type = VisionTransformer, architecture: str = "", rename: Any = dict, **options: Any
) -> Reference:
    arguments = {**SMALL, "dynamic_img_size": True, **options}
    model = randomised(timm.create_model(architecture, **arguments) if architecture else cls(**arguments))
    answer = partial(of_timm, model)
    if architecture:
        sides = to_2tuple(arguments["img_size"])
        timm.models.save_for_hf(model, folder, data_config={"input_size": (3, *sides)})
        return Reference(folder, answer, model)
    torch.save(rename(model.state_dict()), folder / "model.pth")
    return Reference(folder / "model.pth", answer, model)


def as_deit3(state: dict[str, Any]) -> dict[str, Any]:
    """The keys with which DeiT-III was published."""
    return {"model": {re.sub(r"ls(\d)\.gamma", r"gamma_\1", key): tensor for key, tensor in state.items()}}


def case(row: str, name: str, sizes: tuple[Size, ...] = SIZES, **options: Any) -> Case:
    overrides = {**({} if "architecture" in options else TOLD), **options.pop("overrides", {})}
    return Case(row, name, "timm", partial(make, **options), sizes, overrides)


def watched(row: str, name: str, architecture: str, **options: Any) -> Case:
    """A folder that timm saves, of a network that vitviz has none for."""
    return Case(row, name, "watched by timm", partial(make, architecture=architecture, **options), SIZES)


CASES = (
    case("timm ViT (AugReg, DeiT)", "ViT"),
    case("timm ViT (AugReg, DeiT)", "as timm saves it", architecture="vit_tiny_patch16_224"),
    case("timm ViT (AugReg, DeiT)", "pre-logits free, no bias", qkv_bias=False),
    case(
        "timm ViT (AugReg, DeiT)",
        "trained on rectangles",
        ((24, 40), (32, 32)),
        img_size=(24, 40),
        overrides={"image_size": (24, 40)},
    ),
    case(
        "timm ViT (AugReg, DeiT)",
        "patches that are not square",
        ((32, 32), (24, 40)),
        patch_size=(8, 4),
        overrides={"image_size": 32},
    ),
    case(
        "DeiT distilled (timm)",
        "two heads",
        cls=VisionTransformerDistilled,
        overrides={"pooling": "cls and distillation"},
    ),
    case("DeiT-III (timm)", "LayerScale", init_values=0.5, no_embed_class=True),
    case("DeiT-III (timm)", "its own layout", init_values=0.5, no_embed_class=True, rename=as_deit3),
    case("MAE (timm)", "fine-tuned, mean of the patches", global_pool="avg", overrides={"pooling": "mean"}),
    case("MAE (timm)", "encoder", num_classes=0, rename=lambda state: {"model": state}),
    case(
        "timm, no CLS token",
        "mean of the patches",
        class_token=False,
        global_pool="avg",
        fc_norm=False,
        overrides={"pooling": "mean"},
    ),
    watched("timm, registers", "CLS and four registers", "vit_base_patch16_224", reg_tokens=4, no_embed_class=True),
    case(
        "timm, registers",
        "no CLS, four registers",
        reg_tokens=4,
        no_embed_class=True,
        class_token=False,
        global_pool="avg",
        fc_norm=False,
        overrides={"pooling": "mean"},
    ),
    case("timm, registers", "registers with positions", reg_tokens=4, overrides={"image_size": 32}),
    case("timm, QK-norm", "norms of queries and keys", qk_norm=True),
    case("timm SigLIP", "attention pooling", class_token=False, global_pool="map", overrides={"pooling": "attention"}),
    case("timm SigLIP", "attention pooling beside a CLS token", global_pool="map", overrides={"pooling": "attention"}),
    case(
        "timm CLIP",
        "norm before the layers",
        pre_norm=True,
        norm_layer=torch.nn.LayerNorm,
        act_layer="quick_gelu",
        overrides={"activation": "quick gelu", "norm_epsilon": 1e-5},
    ),
    watched("timm DINOv3", "rotary positions", "vit_small_patch16_dinov3", init_values=0.5),
)

"""Every architecture of timm whose patches, or a class token, attend to patches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.parity.case import randomised
from tests.parity.coverage.subject import Subject
from tests.reference_packages import timm

MODULES = (
    *("vision_transformer", "eva", "deit", "beit", "naflexvit", "vision_transformer_relpos"),
    *("vision_transformer_sam", "qwen3_vit", "gemma4_vit", "deepseek_vit"),
    *("swin_transformer", "swin_transformer_v2", "swin_transformer_v2_cr", "hiera", "hieradet_sam2", "pit", "levit"),
    *(
        "nest",
        "vision_transformer_hybrid",
        "tiny_vit",
        "visformer",
        "vitamin",
        "cait",
        "convit",
        "crossvit",
        "coat",
        "tnt",
        "twins",
        "volo",
    ),
    *("mvitv2", "davit", "gcvit", "xcit", "pvt_v2"),
)
HEAD_WIDTH, PATCHES, MAX_PARAMETERS = 16, 8, 1.5e8
# How modules take the number of their layers, of several grids of each.
DEPTHS: tuple[dict[str, Any], ...] = (
    {"depth": 2},
    {"depth": (1, 2, 2)},
    *({"depths": (2,) * grids} for grids in (4, 3)),
    {"stages": (1, 1, 2, 1)},
)
# One global layer of four, and windows that reach beyond the picture.
SAM = {"depth": 4, "img_size": 320}
# They fill borders up, which vitviz does not do: the user says how images are prepared.
OPTIONS: dict[str, dict[str, Any]] = {"deepseek_vit": {"normalisation": "half"}}
WITH_SIZE = ("vision_transformer", "eva", "deit", "beit", "vision_transformer_relpos")


def subjects() -> Iterator[Subject]:
    for module in MODULES:
        for name in sorted(timm.list_models(module=module)):
            build = partial(built, name, module)
            yield Subject("timm", module, name, build, materialised, OPTIONS.get(module, {}))


def built(name: str, module: str) -> nn.Module:
    """With few layers, narrow heads and a small image, as far as the architecture takes them."""
    patch = re.search(r"_p(?:atch)?(\d+)", name)
    size = {"img_size": PATCHES * int(patch[1])} if patch and module in WITH_SIZE else {}
    width = _narrow(name)
    if module == "vision_transformer_sam":
        return _tried(name, {**width, **SAM})
    smaller = [{**width, **size}, width, size, {}]
    for options in dict.fromkeys(tuple({**depth, **more}.items()) for more in smaller for depth in DEPTHS):
        try:
            return _tried(name, dict(options))
        # What does not fit together is refused in as many ways as there are architectures.
        except Exception:
            continue
    return _tried(name, {})


def materialised(module: nn.Module) -> None:
    for part in module.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = False


def _tried(name: str, options: dict[str, Any]) -> nn.Module:
    with torch.device("meta"):
        count = sum(each.numel() for each in timm.create_model(name, pretrained=False, **options).parameters())
    if count > MAX_PARAMETERS:
        raise MemoryError(f"{name} can only be built as large as it is")
    module = randomised(timm.create_model(name, pretrained=False, **options))
    sizes = getattr(getattr(module, "patch_embed", None), "img_size", None) or module.pretrained_cfg["input_size"][1:]
    with torch.no_grad():
        module(torch.zeros(1, 3, *sizes))
    return module


def _on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(name, pretrained=False)


def _narrow(name: str) -> dict[str, Any]:
    try:
        parts = _on_meta(name).modules()
    except Exception:
        return {}
    heads = next((found for found in (getattr(part, "num_heads", None) for part in parts) if found), None)
    return {"embed_dim": HEAD_WIDTH * heads} if isinstance(heads, int) else {}

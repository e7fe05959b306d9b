"""Every configuration of open_clip with a Vision Transformer, at two layers, narrow and with a small image."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.parity.case import randomised
from tests.parity.coverage.subject import Subject
from tests.parity.coverage.timm_subjects import materialised as without_kernels
from tests.parity.package_answers import ask_for_weights
from tests.reference_packages import open_clip

DEPTH, WIDTH, HEADS, PATCHES, MAX_PARAMETERS = 2, 64, 4, 8, 4e7


def subjects() -> Iterator[Subject]:
    for name in open_clip.list_models():
        config = open_clip.get_model_config(name)
        vision = config["vision_cfg"]
        group = "timm" if "timm_model_name" in vision else "CoCa" if "multimodal_cfg" in config else "VisionTransformer"
        # A list of depths is a ResNet's.
        if not isinstance(vision.get("layers"), list):
            options = {"normalisation": "clip"}
            yield Subject("open_clip", group, name, lambda config=config: built(config), materialised, options)


def built(config: dict[str, Any]) -> nn.Module:
    """The tower alone. Those of timm are as large as they are, since open_clip passes no size on."""
    vision = copy.deepcopy(config["vision_cfg"])
    if "timm_model_name" in vision:
        with torch.device("meta"):
            count = sum(each.numel() for each in _tower(vision).parameters())
        if count > MAX_PARAMETERS:
            raise MemoryError(f"{count:,} weights of timm's, which is looked at as timm's own")
        return randomised(_tower(vision))
    vision |= {"layers": DEPTH, "width": WIDTH, "head_width": WIDTH // HEADS}
    vision |= {"image_size": PATCHES * vision["patch_size"]}
    return randomised(_tower(vision))


def materialised(module: nn.Module) -> None:
    without_kernels(module)
    for part in module.modules():
        if isinstance(part, nn.MultiheadAttention):
            part.register_forward_pre_hook(ask_for_weights, with_kwargs=True)


def _tower(vision: dict[str, Any]) -> nn.Module:
    found = open_clip.CLIPVisionCfg(**{**vision, "timm_model_pretrained": False})
    return open_clip.model._build_vision_tower(WIDTH, found)

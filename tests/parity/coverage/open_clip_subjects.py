"""Every configuration of open_clip with a Vision Transformer, at two layers and a small image."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch import nn

from tests.parity.case import randomised, with_weights
from tests.parity.coverage.subject import Subject
from tests.parity.coverage.timm_subjects import materialised as timm_materialised
from tests.reference_packages import open_clip

TEXT = {"width": 64, "layers": 1, "heads": 2, "vocab_size": 100, "context_length": 8}


def subjects() -> Iterator[Subject]:
    for name in open_clip.list_models():
        config = open_clip.get_model_config(name)
        vision = config["vision_cfg"]
        group = "timm" if "timm_model_name" in vision else "CoCa" if "multimodal_cfg" in config else "VisionTransformer"
        reason = "a ResNet" if isinstance(vision.get("layers"), list) else ""
        options = {"normalisation": "clip"}
        yield Subject("open_clip", group, name, lambda config=config: built(config), materialised, options, reason)


def built(config: dict[str, Any]) -> nn.Module:
    config = copy.deepcopy(config)
    vision = config["vision_cfg"]
    if "timm_model_name" in vision:
        from tests.parity.coverage.timm_subjects import _narrow, _parameters

        name = vision["timm_model_name"]
        for options in ({"depth": 2, **_narrow(name)}, _narrow(name), {"depth": 2}, {}):
            try:
                if not options and _parameters(name) > 4e8:
                    raise MemoryError(f"{name} can only be built as large as it is")
                tower = open_clip.timm_model.TimmModel(
                    name,
                    64,
                    image_size=vision["image_size"],
                    pool=vision.get("timm_pool", "avg"),
                    proj=vision.get("timm_proj", "linear"),
                    pretrained=False,
                    **{"custom_model": options} if False else {},
                )
                return randomised(tower)
            except TypeError:
                continue
    vision |= {"layers": 2, "image_size": 8 * vision["patch_size"]}
    heads = 4
    vision |= {"width": 64, "head_width": 64 // heads}
    tower = open_clip.model._build_vision_tower(64, open_clip.CLIPVisionCfg(**vision))
    return randomised(tower)


def materialised(module: nn.Module) -> None:
    timm_materialised(module)
    with_weights([part for part in module.modules() if isinstance(part, nn.MultiheadAttention)])

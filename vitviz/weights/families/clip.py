"""The visual towers of OpenAI's CLIP (Radford et al. 2021) and of OpenCLIP (Ilharco et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from vitviz.weights.families import published
from vitviz.weights.families.conventions import width
from vitviz.weights.pieces import Family, Found, Open, Standard
from vitviz.weights.preparation import CLIP

TEXT_TOWER = "the text tower"
NAMES = {
    "conv1": "patch",
    "class_embedding": "cls",
    "positional_embedding": "positions",
    "ln_pre": "pre_norm",
    "transformer.resblocks.*.ln_1": "attention_norm",
    "transformer.resblocks.*.attn.in_proj_weight": "qkv.weight",
    "transformer.resblocks.*.attn.in_proj_bias": "qkv.bias",
    "transformer.resblocks.*.attn.out_proj": "out",
    "transformer.resblocks.*.ls_1.gamma": "attention_scale",
    "transformer.resblocks.*.ln_2": "mlp_norm",
    "transformer.resblocks.*.mlp.c_fc": "mlp_in",
    "transformer.resblocks.*.mlp.c_proj": "mlp_out",
    "transformer.resblocks.*.ls_2.gamma": "mlp_scale",
    "ln_post": "norm",
    "proj": "projection.weight",
}
# OpenAI's state dicts carry these three numbers; OpenCLIP's do not.
OPENAI = ("input_resolution", "context_length", "vocab_size")


def clip_facts(found: Found) -> dict[str, Any]:
    if set(found.file.groups[found.group]) & set(OPENAI):
        known = "the numbers that only OpenAI's own files carry"
        found.learn("activation", "quick gelu", known)
        heads = found.learn("heads", width(found) // 64, f"{known}: 64 features a head")
        return {"heads": heads, "norm_epsilon": 1e-5, "activation": "quick gelu", "pooling": "cls"}
    model = found.open_clip.inner("model_cfg") or found.open_clip
    vision = model.inner("vision_cfg")
    if vision is None:
        return {
            "heads": Open(usual=max(1, width(found) // 64)),
            "norm_epsilon": 1e-5,
            "activation": Open(usual="gelu"),
            "pooling": Open(usual="cls"),
            "final_norm": Open(usual="before pooling"),
        }
    head_width = vision.count("head_width", 64)
    if head_width is None or width(found) % head_width:
        raise vision.refuse("head_width", f"a whole number that divides the width, {width(found)}")
    quick = model.flag("quick_gelu", False)
    return {
        "heads": found.learn("heads", width(found) // head_width, f"head_width {head_width} in open_clip_config.json"),
        "norm_epsilon": vision.part("norm_kwargs").positive("eps", 1e-5),
        "activation": found.learn("activation", "quick gelu" if quick else "gelu", "quick_gelu in its configuration"),
        "pooling": vision.choice("pool_type", {"tok": "cls", "avg": "mean"}, "tok"),
        "final_norm": "after pooling" if vision.flag("final_ln_after_pool", False) else "before pooling",
        "image_size": vision.size("image_size"),
    }


def transposed_projection(piece: str, tensor: torch.Tensor, facts: Mapping[str, Any]) -> torch.Tensor:
    """CLIP multiplies its projection from the right."""
    return tensor.mT if piece == "projection.weight" else tensor


OPEN_CLIP = Family(
    name="clip",
    title="OpenAI CLIP and OpenCLIP",
    names=NAMES,
    signature=("class_embedding", "conv1.weight", "transformer.resblocks.0.attn.in_proj_weight"),
    facts=clip_facts,
    published=published.by_shape(published.OPEN_CLIP),
    standard=Standard(*CLIP, "CLIP's preprocessing", crop_fraction=1.0),
    outside={
        **dict.fromkeys(("transformer.*", "token_embedding.*", "positional_embedding", "ln_final.*"), TEXT_TOWER),
        **dict.fromkeys(("text_projection", "text_projection.*", "attn_mask", "text.*"), TEXT_TOWER),
        **dict.fromkeys(("logit_scale", "logit_bias"), "the scale of similarities to text"),
        **dict.fromkeys(OPENAI, "sizes of the text tower and of the image"),
    },
    form=transposed_projection,
)

FAMILIES = (OPEN_CLIP,)

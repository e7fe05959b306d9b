"""The visual towers of OpenAI's CLIP (Radford et al. 2021) and of OpenCLIP (Ilharco et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from vitviz.weights.conversion.canonical import Family, MatchedCheckpoint, OpenFact
from vitviz.weights.families.conventions import clip, width
from vitviz.weights.families.published import by_shape
from vitviz.weights.metadata.settings import Settings

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
# Numbers that OpenAI's state dicts have and OpenCLIP's do not.
OPENAI = ("input_resolution", "context_length", "vocab_size")
# Entries of model_cfg that change no number of the visual tower.
HARMLESS = ("text_cfg", "custom_text", "multimodal_cfg", "init_logit_*", "nonscalar_logit_scale", "output_dict")
# Entries of vision_cfg that change none: for training, for options of other entries, and for towers of timm.
HARMLESS_OF_TOWER = ("patch_dropout", "output_tokens", "attn_pooler_*", "timm_*")
# Keys outside the visual tower; the text tower may have a prefix of its own.
OUTSIDE_OF_TOWER = {
    **dict.fromkeys(("transformer.*", "token_embedding.*", "positional_embedding", "ln_final.*"), TEXT_TOWER),
    **dict.fromkeys(("text_projection", "text_projection.*", "attn_mask", "text.*"), TEXT_TOWER),
    **dict.fromkeys(("logit_scale", "logit_bias"), "the scale of similarities to text"),
}
# Entries that ask for layers which vitviz does not have.
OTHER_LAYERS = ("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn", "scale_fc")


def clip_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    model = checkpoint.open_clip.inner("model_cfg") or checkpoint.open_clip
    vision = model.inner("vision_cfg")
    if vision is None and set(checkpoint.file.groups[checkpoint.group]) & set(OPENAI):
        source = "the numbers that only OpenAI's own files carry"
        checkpoint.record("activation", "quick gelu", source)
        heads = checkpoint.record("heads", width(checkpoint) // 64, f"{source}: 64 features a head")
        return {"heads": heads, "norm_epsilon": 1e-5, "activation": "quick gelu", "pooling": "cls"}
    if vision is None:
        return {
            "heads": OpenFact(usual=max(1, width(checkpoint) // 64)),
            "norm_epsilon": OpenFact(usual=1e-5),
            "activation": OpenFact(usual="gelu"),
            "pooling": OpenFact(usual="cls"),
            "final_norm": OpenFact(usual="before pooling"),
        }
    model.skip(HARMLESS)
    vision.skip(HARMLESS_OF_TOWER)
    vision.only("timm_model_name", "")
    vision.only("attentional_pool", False)
    vision.only("block_type", "default", "custom")
    for entry in OTHER_LAYERS:
        vision.only(entry, False)
    vision.only("pos_embed_type", "learnable", "sin_cos_2d")
    vision.require("no_ln_pre", not checkpoint.has("pre_norm.weight"), False)
    # Its initial value does not matter: the trained one is in the file.
    if (vision.get("ls_init_value") is not None) != checkpoint.has("attention_scale"):
        raise vision.refuse("ls_init_value", "a number" if checkpoint.has("attention_scale") else "nothing")
    if not checkpoint.has("projection.weight"):
        raise checkpoint.missing_key("projection.weight")
    head_width = vision.count("head_width", 64)
    heads = max(1, width(checkpoint) // head_width)
    if width(checkpoint) % heads:
        raise vision.refuse("head_width", f"a whole number that divides the width, {width(checkpoint)}")
    size = vision.size("image_size") or (224, 224)
    patch = vision.size("patch_size") or (16, 16)
    square = size[0] // patch[0] == size[1] // patch[1]
    return {
        "heads": checkpoint.record("heads", heads, f"head_width {head_width} in open_clip_config.json"),
        "norm_epsilon": _norm_epsilon(vision),
        "activation": checkpoint.record("activation", _activation(model, vision), "quick_gelu in its configuration"),
        "pooling": vision.choice("pool_type", {"tok": "cls", "avg": "mean"}, "tok"),
        "final_norm": "after pooling" if vision.flag("final_ln_after_pool", False) else "before pooling",
        "image_size": size,
        # To resize positions, open_clip takes them for those of a square grid.
        "position_rule": "bicubic antialiased" if square else "fixed",
        "stated": {
            "width": (features := vision.count("width", 768)),
            "depth": vision.count("layers", 12),
            "mlp_width": int(features * vision.positive("mlp_ratio", 4.0)),
            "patch_height": patch[0],
            "patch_width": patch[1],
            "projection_width": model.count("embed_dim"),
        },
        "stated_by": checkpoint.open_clip.place,
    }


def _norm_epsilon(vision: Settings) -> float:
    options = vision.inner_or_empty("norm_kwargs")
    options.only("elementwise_affine", True)
    options.only("bias", True)
    return options.positive("eps", 1e-5)


def _activation(model: Settings, vision: Settings) -> str:
    if model.flag("quick_gelu", False):
        return "quick gelu"
    return vision.inner_or_empty("act_kwargs").choice("approximate", {"none": "gelu", "tanh": "gelu tanh"}, "none")


def transpose_projection(canonical_key: str, tensor: torch.Tensor, facts: Mapping[str, Any]) -> torch.Tensor:
    """The projection transposed, since CLIP multiplies features by it from the right."""
    return tensor.mT if canonical_key == "projection.weight" else tensor


OPEN_CLIP = Family(
    name="clip",
    title="OpenAI CLIP and OpenCLIP",
    names=NAMES,
    signature=("class_embedding", "conv1.weight", "transformer.resblocks.0.attn.in_proj_weight"),
    facts=clip_facts,
    published=by_shape("open_clip"),
    default_transform=clip("CLIP's preprocessing", crop_fraction=1.0),
    outside={**OUTSIDE_OF_TOWER, **dict.fromkeys(OPENAI, "sizes of the text tower and of the image")},
    convert=transpose_projection,
)

FAMILIES = (OPEN_CLIP,)

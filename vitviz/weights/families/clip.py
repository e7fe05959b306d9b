"""The visual towers of OpenAI's CLIP (Radford et al. 2021) and of OpenCLIP (Ilharco et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from vitviz.errors import CheckpointError, choices, shown
from vitviz.weights.families.conventions import heads_by_width, size_of
from vitviz.weights.pieces import Family, Found, Standard
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
    model = _part(found.open_clip, "model_cfg") or found.open_clip
    vision = _part(model, "vision_cfg")
    norm, pool = _part(vision, "norm_kwargs"), vision.get("pool_type", "tok")
    if pool not in ("tok", "avg"):
        raise CheckpointError(
            f"{found.name}: pool_type = {shown(pool)} in its open_clip_config.json; expected {choices(('tok', 'avg'))}"
        )
    return {
        "heads": _heads(found, vision),
        "norm_epsilon": norm.get("eps", 1e-5),
        "activation": _activation(found, model),
        "pooling": "mean" if pool == "avg" else "cls",
        "final_norm": "after pooling" if vision.get("final_ln_after_pool") else "before pooling",
        "image_size": size_of(vision.get("image_size")),
    }


def transposed_projection(piece: str, tensor: torch.Tensor, facts: Mapping[str, Any]) -> torch.Tensor:
    """CLIP multiplies its projection from the right."""
    return tensor.mT if piece == "projection.weight" else tensor


def _heads(found: Found, vision: Mapping[str, Any]) -> int:
    width, head_width = found.stored("conv1.weight") or found.stored("patch.weight"), vision.get("head_width")
    if head_width is not None and "heads" not in found.told:
        if not isinstance(head_width, int) or isinstance(head_width, bool) or head_width < 1 or width[0] % head_width:
            raise CheckpointError(
                f"{found.name}: head_width = {shown(head_width)} in its open_clip_config.json; expected a whole number "
                f"that divides {width[0]}, the width of {shown(found.spell('patch.weight'))}"
            )
        return found.learn("heads", width[0] // head_width, f"head_width {head_width} in open_clip_config.json")
    return heads_by_width(found)


def _activation(found: Found, model: Mapping[str, Any]) -> str:
    if "activation" in found.told:
        return str(found.told["activation"])
    beside = set(found.file.groups[found.group])
    if beside & set(OPENAI):
        return found.learn("activation", "quick gelu", "the numbers that only OpenAI's own files carry")
    if "vision_cfg" in model:
        quick = bool(model.get("quick_gelu"))
        return found.learn("activation", "quick gelu" if quick else "gelu", "quick_gelu in open_clip_config.json")
    why = "CLIP's weights do not say whether they were trained with GELU or with OpenAI's approximation of it"
    return found.ask("activation", why, ("gelu", "quick gelu"))


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = config.get(name)
    return part if isinstance(part, dict) else {}


OPEN_CLIP = Family(
    name="clip",
    title="OpenAI CLIP and OpenCLIP",
    names=NAMES,
    signature=("class_embedding", "conv1.weight", "transformer.resblocks.0.attn.in_proj_weight"),
    facts=clip_facts,
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

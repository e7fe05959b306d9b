"""timm's Vision Transformers (Wightman 2019, "PyTorch Image Models"), and who writes the same keys: DeiT, MAE, DINO."""

from __future__ import annotations

import math
from typing import Any

from vitviz.errors import CheckpointError, shown
from vitviz.weights.families.conventions import half, imagenet, size_of
from vitviz.weights.pieces import Family, Found, Open

NAMES = {
    "patch_embed.proj": "patch",
    "cls_token": "cls",
    "dist_token": "distillation",
    "reg_token": "registers",
    "pos_embed": "positions",
    "norm_pre": "pre_norm",
    "blocks.*.norm1": "attention_norm",
    "blocks.*.attn.qkv": "qkv",
    "blocks.*.attn.q_bias": "query.bias",
    "blocks.*.attn.v_bias": "value.bias",
    "blocks.*.attn.q_norm": "query_norm",
    "blocks.*.attn.k_norm": "key_norm",
    "blocks.*.attn.proj": "out",
    "blocks.*.ls1.gamma": "attention_scale",
    "blocks.*.gamma_1": "attention_scale",
    "blocks.*.norm2": "mlp_norm",
    "blocks.*.mlp.fc1": "mlp_in",
    "blocks.*.mlp.fc1_g": "gate",
    "blocks.*.mlp.fc1_x": "mlp_in",
    "blocks.*.mlp.fc2": "mlp_out",
    "blocks.*.ls2.gamma": "mlp_scale",
    "blocks.*.gamma_2": "mlp_scale",
    "norm": "norm",
    "fc_norm": "norm",
    "pre_logits.fc": "representation",
    "attn_pool.latent": "pool.probe",
    "attn_pool.q": "pool.query",
    "attn_pool.kv": "pool.key_value",
    "attn_pool.proj": "pool.out",
    "attn_pool.norm": "pool.norm",
    "attn_pool.mlp.fc1": "pool.mlp_in",
    "attn_pool.mlp.fc2": "pool.mlp_out",
    "head": "classifier",
    "head_dist": "distillation_classifier",
    "head.proj": "projection",
}
MAE_DECODER = "the decoder with which MAE was pretrained"
TEXT_TOWER = "the text tower"

# Architectures that differ from every other of their width.
OTHER_HEADS = {"giantopt": 16, "vit_base_patch16_gap_224": 16, "vit_giant_patch14_dinov2": 24}
GIANT = 1536
# SigLIP 2's checkpoints use the tanh approximation, as do the SigLIP ones of the same code.
TANH = (
    *("giantopt", "base_patch32_siglip", "so400m_patch16_siglip"),
    *("large_patch16_siglip_512", "large_patch16_siglip_gap_512"),
)
# Architectures with keys like these and other mathematics, by a part of their names.
ROTARY = "rotary positions beside learned ones, or of another kind than DINOv3's"
LOOKALIKES = {
    "_rope_": ROTARY,
    "eva02_": ROTARY,
    "vit_pe_": ROTARY,
    "_rpn_": "norms after attention and MLP instead of before them",
    "test_vit3": "attention pooling of the prefix tokens, too",
}
POOLINGS = {"token": "cls", "avg": "mean", "map": "attention"}


def timm_facts(found: Found) -> dict[str, Any]:
    architecture = _architecture(found)
    _refuse_lookalikes(found, architecture)
    if not architecture and found.keys.get((0, "attention_scale"), "").endswith("gamma_1"):
        same = "its keys; RoPE-ViT with learned positions, which vitviz does not read, has the same"
        found.learn("LayerScale", "that of DeiT-III", same)
    after = found.keys.get((None, "norm.weight"), "").endswith("fc_norm.weight")
    facts: dict[str, Any] = {
        "heads": _heads(found, architecture),
        "norm_epsilon": 1e-5 if found.has("pre_norm.weight") else 1e-6,
        "activation": _activation(found, architecture),
        "final_norm": "after pooling" if after else "before pooling" if found.has("norm.weight") else "none",
        "image_size": _image_size(found),
        "normalisation": _normalisation(found),
        **_pooling(found, after),
    }
    return facts


def dinov3_facts(found: Found) -> dict[str, Any]:
    """timm's own layout of DINOv3 (its class Eva)."""
    _refuse_lookalikes(found, _architecture(found))
    pooled = "mean" if found.config.get("global_pool", "avg") == "avg" else "cls"
    return {
        "heads": Open(),
        "norm_epsilon": 1e-5,
        "activation": "silu" if found.has("gate.weight") else "gelu",
        "rotary": True,
        "pooling": pooled,
        "final_norm": _final_norm(found),
        "image_size": _image_size(found) or (256, 256),
    }


def _final_norm(found: Found) -> str:
    return "after pooling" if found.keys.get((None, "norm.weight"), "").endswith("fc_norm.weight") else "before pooling"


def _normalisation(found: Found) -> str:
    """What a file without a configuration was most likely trained with, by what only some of them have."""
    if found.has("distillation") or found.group == "model" or found.has("attention_scale"):
        return "imagenet"  # DeiT, DeiT-III, MAE and DINOv2
    return "clip" if found.has("pre_norm.weight") else "half"


def _architecture(found: Found) -> str:
    vision = found.open_clip.get("model_cfg", {})
    vision = vision.get("vision_cfg", {}) if isinstance(vision, dict) else {}
    name = found.config.get("architecture") or (vision.get("timm_model_name") if isinstance(vision, dict) else None)
    if not isinstance(name, str):
        return ""
    return found.learn("architecture", name, "its configuration")


def _refuse_lookalikes(found: Found, architecture: str) -> None:
    """Refuse what has the keys of this family and other mathematics."""
    reason = next((reason for part, reason in LOOKALIKES.items() if part in architecture), None)
    # Without a name: of timm's models with learned positions, only those with rotary ones beside have these keys.
    gated = found.stored("mlp_in.weight")[:1] != found.stored("mlp_out.weight")[1:]
    eva = (found.has("query.bias") and gated) or found.has("gate.weight")
    encoder = found.has("pre_norm.weight") and (found.has("pool.probe") or not found.has("norm.weight"))
    if found.has("positions") and (eva or encoder):
        reason = reason or ROTARY
    if reason is not None:
        raise CheckpointError(f"{found.name}: this is a model with {reason}, which vitviz does not read")


def _heads(found: Found, architecture: str) -> int:
    for part, heads in OTHER_HEADS.items():
        if part in architecture and "heads" not in found.told:
            return found.learn("heads", heads, f"timm's {architecture}")
    gated = found.stored("mlp_in.weight")[:1] != found.stored("mlp_out.weight")[1:]
    if found.stored("attention_norm.weight") == (GIANT,) and gated and "heads" not in found.told:
        return found.learn("heads", 24, "DINOv2's giant is the only one of this width with a gated MLP")
    return Open()


def _activation(found: Found, architecture: str) -> str:
    hidden, passed = found.stored("mlp_in.weight")[:1], found.stored("mlp_out.weight")[1:]
    if hidden != passed:
        return found.learn("activation", "silu", "the gate of its MLP")
    undecided = found.has("pre_norm.weight") or found.has("pool.probe") or "siglip" in architecture
    # Towers of SigLIP without their pooling, and I-JEPA, differ in nothing else.
    bare = not any(found.has(piece) for piece in ("cls", "registers", "classifier.weight"))
    after = found.keys.get((None, "norm.weight"), "").endswith("fc_norm.weight")
    positions = found.stored("positions")[-2:][0]
    undecided = undecided or (bare and not after and math.isqrt(positions) ** 2 == positions)
    if not undecided:
        return "gelu"
    if not architecture:
        return Open()
    if "quickgelu" in architecture:
        return "quick gelu"
    return "gelu tanh" if any(part in architecture for part in TANH) else "gelu"


def _pooling(found: Found, after: bool) -> dict[str, Any]:
    if found.has("distillation_classifier.weight"):
        return {"pooling": "cls and distillation"}
    if "pool.probe" in {piece for _, piece in found.keys}:
        return {"pooling": "attention"}
    named = found.config.get("global_pool")
    if isinstance(named, str) and named in POOLINGS and not (named == "token" and not found.has("cls")):
        return {"pooling": POOLINGS[named]}
    if named not in (None, "", "token"):
        raise CheckpointError(
            f"{found.name}: global_pool {shown(named)} in its config.json; expected token, avg or map"
        )
    return {"pooling": "mean" if after or not found.has("cls") else "cls"}


def _image_size(found: Found) -> tuple[int, int] | None:
    for where in ("model_args", "pretrained_cfg"):
        part = found.config.get(where)
        if not isinstance(part, dict):
            continue
        size = size_of(part.get("img_size") or part.get("input_size"))
        if size:
            return size
    return None


TIMM = Family(
    name="timm",
    title="timm ViT, DeiT, MAE, SigLIP, CLIP",
    names=NAMES,
    signature=("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "pos_embed"),
    facts=timm_facts,
    standard=half("timm's convention for AugReg, or DeiT's, MAE's or CLIP's by its keys", crop_fraction=0.9),
    ignored={
        "decoder_*": MAE_DECODER,
        "mask_token": MAE_DECODER,
    },
    outside={"text.*": TEXT_TOWER, "logit_scale": TEXT_TOWER, "logit_bias": TEXT_TOWER},
)

DINOV3 = Family(
    name="timm-dinov3",
    title="timm DINOv3",
    names=NAMES,
    signature=("patch_embed.proj.weight", "cls_token", "reg_token", "blocks.0.attn.qkv.weight", "blocks.0.gamma_1"),
    without=("pos_embed",),
    facts=dinov3_facts,
    standard=imagenet("DINOv3's model card", crop_fraction=1.0, interpolation="bicubic"),
)

FAMILIES = (DINOV3, TIMM)

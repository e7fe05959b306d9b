"""The Vision Transformers of MMPretrain (before: MMClassification), DeiT and DeiT-III among them."""

from __future__ import annotations

import math
from typing import Any

from vitviz.weights.conversion.canonical import Family, MatchedCheckpoint, OpenFact
from vitviz.weights.families.conventions import half, imagenet
from vitviz.weights.families.published import by_shape

NAMES = {
    "patch_embed.projection": "patch",
    "cls_token": "cls",
    "dist_token": "distillation",
    "pos_embed": "positions",
    "pre_norm": "pre_norm",
    "layers.*.ln1": "attention_norm",
    "layers.*.attn.qkv": "qkv",
    "layers.*.attn.proj": "out",
    "layers.*.attn.gamma1.weight": "attention_scale",
    "layers.*.ln2": "mlp_norm",
    "layers.*.ffn.layers.0.0": "mlp_in",
    "layers.*.ffn.layers.1": "mlp_out",
    "layers.*.ffn.gamma2.weight": "mlp_scale",
    # After the layers, or after the mean of the patches.
    "ln1": "norm",
    "ln2": "norm",
    "head.layers.pre_logits": "representation",
    "head.layers.head": "classifier",
    "head.layers.head_dist": "distillation_classifier",
    "head.fc": "classifier",
}

# Google's weights, which MMPretrain publishes at more than 224 pixels.
FINE_TUNED = half("MMPretrain's configurations of ViT at 384 pixels", crop_fraction=1.0, interpolation="bilinear")


def mmpretrain_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    norm, classifier = (checkpoint.keys.get((None, f"{name}.weight"), "") for name in ("norm", "classifier"))
    is_mean = norm.endswith("ln2.weight")
    pooling: Any = "mean" if is_mean else "cls" if classifier.endswith("layers.head.weight") else OpenFact(usual="cls")
    if checkpoint.has("distillation_classifier.weight"):
        pooling = "cls and distillation"
    is_deit = is_mean or checkpoint.has("distillation") or checkpoint.has("attention_scale")
    pixels = math.isqrt((checkpoint.shape("positions") or (0, 0))[-2]) * (checkpoint.shape("patch.weight") or (0,))[-1]
    return {
        "heads": OpenFact(),
        "norm_epsilon": OpenFact(usual=1e-5 if checkpoint.has("pre_norm.weight") else 1e-6),
        "activation": OpenFact(usual="gelu"),
        "position_rule": "bicubic",
        "final_norm": "after pooling" if is_mean else "before pooling" if norm else "none",
        "pooling": pooling,
        **({"transform": FINE_TUNED} if pixels > 224 and not is_deit else {}),
    }


MMPRETRAIN = Family(
    name="mmpretrain",
    title="MMPretrain ViT, DeiT",
    names=NAMES,
    signature=("patch_embed.projection.weight", "pos_embed", "layers.0.ln1.weight", "layers.0.attn.qkv.weight"),
    facts=mmpretrain_facts,
    published=by_shape("MMPretrain"),
    default_transform=imagenet("MMPretrain's configurations of ViT, DeiT and MAE"),
    outside={"neck.*": "used in pretraining only"},
)

FAMILIES = (MMPRETRAIN,)

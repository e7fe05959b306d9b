"""torchvision's ``vit_*`` models."""

from __future__ import annotations

from typing import Any

from vitviz.weights.conversion.canonical import Family, MatchedCheckpoint, OpenFact
from vitviz.weights.families.conventions import imagenet
from vitviz.weights.families.published import TORCHVISION as PUBLISHED
from vitviz.weights.families.published import by_shape

LAYER = "encoder.layers.encoder_layer_*"
NAMES = {
    "conv_proj": "patch",
    "class_token": "cls",
    "encoder.pos_embedding": "positions",
    f"{LAYER}.ln_1": "attention_norm",
    f"{LAYER}.self_attention.in_proj_weight": "qkv.weight",
    f"{LAYER}.self_attention.in_proj_bias": "qkv.bias",
    f"{LAYER}.self_attention.out_proj": "out",
    f"{LAYER}.ln_2": "mlp_norm",
    f"{LAYER}.mlp.0": "mlp_in",
    f"{LAYER}.mlp.3": "mlp_out",
    # Names in torchvision's first release of these models.
    f"{LAYER}.mlp.linear_1": "mlp_in",
    f"{LAYER}.mlp.linear_2": "mlp_out",
    "encoder.ln": "norm",
    "heads.pre_logits": "representation",
    "heads.head": "classifier",
}


def torchvision_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    return {"heads": OpenFact(), "norm_epsilon": 1e-6, "position_rule": "bicubic corners", "pooling": "cls"}


TORCHVISION = Family(
    name="torchvision",
    title="torchvision vit_*",
    names=NAMES,
    signature=("conv_proj.weight", "class_token", "encoder.layers.encoder_layer_0.self_attention.in_proj_weight"),
    facts=torchvision_facts,
    published=by_shape(PUBLISHED),
    default_transform=imagenet("torchvision's IMAGENET1K_V1 weights", interpolation="bilinear"),
)

FAMILIES = (TORCHVISION,)

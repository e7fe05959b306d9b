"""torchvision's ``vit_*`` models."""

from __future__ import annotations

from typing import Any

from vitviz.weights.conversion.canonical import Family, MatchedCheckpoint, OpenFact
from vitviz.weights.families.conventions import imagenet
from vitviz.weights.families.published import by_shape, published_rows
from vitviz.weights.metadata.rules import fraction_of

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
SWAG = imagenet("torchvision's IMAGENET1K_SWAG weights", crop_fraction=1.0)
# Of published weights that are prepared otherwise than most. Linear SWAG weights of vit_b_16 and vit_l_16 have the
# shapes of IMAGENET1K_V1, and no entry.
TRANSFORMS = {
    "vit_b_16 (SWAG)": SWAG,
    "vit_l_16": imagenet(
        "torchvision's IMAGENET1K_V1 weights of vit_l_16", crop_fraction=fraction_of(224, 242), interpolation="bilinear"
    ),
    **dict.fromkeys(("vit_l_16 (SWAG)", "vit_h_14 (SWAG)", "vit_h_14 (SWAG, linear)"), SWAG),
}


def torchvision_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    facts = {"heads": OpenFact(), "norm_epsilon": 1e-6, "position_rule": "bicubic corners", "pooling": "cls"}
    name = next((row.name for row in published_rows("torchvision") if row.match(checkpoint)), "")
    return {**facts, "transform": TRANSFORMS[name]} if name in TRANSFORMS else facts


TORCHVISION = Family(
    name="torchvision",
    title="torchvision vit_*",
    names=NAMES,
    signature=("conv_proj.weight", "class_token", "encoder.layers.encoder_layer_0.self_attention.in_proj_weight"),
    facts=torchvision_facts,
    published=by_shape("torchvision"),
    default_transform=imagenet("torchvision's IMAGENET1K_V1 weights", interpolation="bilinear"),
)

FAMILIES = (TORCHVISION,)

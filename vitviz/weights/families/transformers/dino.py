"""DINOv2, with registers or without, and DINOv3 as transformers writes them."""

from __future__ import annotations

from typing import Any

from vitviz.weights.conversion.canonical import Family, MatchedCheckpoint
from vitviz.weights.families.conventions import imagenet, pooling_of_classifier
from vitviz.weights.families.published import by_shape
from vitviz.weights.families.transformers.classes import CLASSES, DECODER, model_types
from vitviz.weights.families.transformers.towers import (
    Tower,
    common_facts,
    read_tower,
    require_biases,
    require_square,
    trained_size,
)

TRAINING = "used in pretraining only"
DINOV2_NAMES = {
    "embeddings.patch_embeddings.projection": "patch",
    "embeddings.cls_token": "cls",
    "embeddings.register_tokens": "registers",
    "embeddings.position_embeddings": "positions",
    "encoder.layer.*.norm1": "attention_norm",
    "encoder.layer.*.attention.attention.query": "query",
    "encoder.layer.*.attention.attention.key": "key",
    "encoder.layer.*.attention.attention.value": "value",
    "encoder.layer.*.attention.output.dense": "out",
    "encoder.layer.*.layer_scale1.lambda1": "attention_scale",
    "encoder.layer.*.norm2": "mlp_norm",
    "encoder.layer.*.mlp.fc1": "mlp_in",
    "encoder.layer.*.mlp.fc2": "mlp_out",
    "encoder.layer.*.mlp.weights_in": "mlp_in",
    "encoder.layer.*.mlp.weights_out": "mlp_out",
    "encoder.layer.*.layer_scale2.lambda1": "mlp_scale",
    "layernorm": "norm",
    "classifier": "classifier",
    # Names that version 5 has in memory, and in files that torch saves.
    "encoder.layer.*.attention.q_proj": "query",
    "encoder.layer.*.attention.k_proj": "key",
    "encoder.layer.*.attention.v_proj": "value",
    "encoder.layer.*.attention.o_proj": "out",
    "encoder.layer.*.mlp.gate_proj": "gate",
    "encoder.layer.*.mlp.up_proj": "mlp_in",
    "encoder.layer.*.mlp.down_proj": "mlp_out",
}
DINOV3_LAYERS = {
    "norm1": "attention_norm",
    "attention.q_proj": "query",
    "attention.k_proj": "key",
    "attention.v_proj": "value",
    "attention.o_proj": "out",
    "layer_scale1.lambda1": "attention_scale",
    "norm2": "mlp_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "mlp_in",
    "mlp.down_proj": "mlp_out",
    "layer_scale2.lambda1": "mlp_scale",
}
DINOV3_NAMES = {
    "embeddings.patch_embeddings": "patch",
    "embeddings.cls_token": "cls",
    "embeddings.register_tokens": "registers",
    **{f"layer.*.{name}": canonical_key for name, canonical_key in DINOV3_LAYERS.items()},
    # Names that version 5 has in memory.
    **{f"model.layer.*.{name}": canonical_key for name, canonical_key in DINOV3_LAYERS.items()},
    "norm": "norm",
    "classifier": "classifier",
}


def dinov2_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    tower = read_tower(checkpoint)
    packed = checkpoint.keys.get((0, "mlp_in.weight"), "").endswith("weights_in.weight")
    gated, registers = packed or checkpoint.has("gate.weight"), checkpoint.has("registers")
    facts = {
        **common_facts(checkpoint, tower, CLASSES["dinov2"]),
        **trained_size(tower, "bicubic antialiased" if registers else "bicubic"),
        "positioned": (1,),
        "any_size": True,
        "pooling": "cls",
        **pooling_of_classifier(checkpoint),
    }
    if tower is not None:
        require_square(tower)
        require_biases(checkpoint, tower, query="qkv_bias", key="qkv_bias", value="qkv_bias")
        tower.settings.require("use_swiglu_ffn", gated)
        facts["stated"] = {**facts["stated"], "mlp_width": _mlp_width(tower, gated), **_registers(tower)}
    # The gated MLP has this activation, whatever the configuration states.
    return {**facts, "activation": "silu"} if gated else facts


def dinov3_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    tower = read_tower(checkpoint)
    facts = {
        **common_facts(checkpoint, tower, CLASSES["dinov3_vit"]),
        "any_size": True,
        "rotary": True,
        "pooling": "cls",
        **pooling_of_classifier(checkpoint),
    }
    if tower is None:
        base = checkpoint.record("rotary base", 100.0, "that of every published DINOv3", assumed=True)
        return {**facts, "image_size": (224, 224), "rotary_base": base}
    biases = {"query": "query_bias", "key": "key_bias", "value": "value_bias", "out": "proj_bias"}
    require_biases(checkpoint, tower, **biases, mlp_in="mlp_bias", mlp_out="mlp_bias")
    tower.settings.require("use_gated_mlp", checkpoint.has("gate.weight"))
    if checkpoint.has("gate.weight"):
        require_biases(checkpoint, tower, gate="mlp_bias")
    stated = {**facts["stated"], "mlp_width": tower.settings.count("intermediate_size"), **_registers(tower)}
    size = tower.size("image_size")
    return {**facts, "image_size": size, "rotary_base": tower.settings.positive("rope_theta"), "stated": stated}


def _mlp_width(tower: Tower, gated: bool) -> int:
    hidden = int(tower.settings.count("hidden_size") * tower.settings.positive("mlp_ratio"))
    return (int(hidden * 2 / 3) + 7) // 8 * 8 if gated else hidden


def _registers(tower: Tower) -> dict[str, int]:
    if "num_register_tokens" not in tower.vision_class.defaults:
        return {}
    return {"register_tokens": tower.settings.count("num_register_tokens", minimum=0)}


DINOV2 = Family(
    name="transformers-dinov2",
    title="transformers DINOv2",
    names=DINOV2_NAMES,
    signature=("embeddings.patch_embeddings.projection.weight", "encoder.layer.0.layer_scale1.lambda1"),
    excluded_keys=("embeddings.register_tokens",),
    model_types=model_types("dinov2"),
    facts=dinov2_facts,
    published=by_shape("transformers DINOv2"),
    default_transform=imagenet("DINOv2's evaluation"),
    ignored={"embeddings.mask_token": TRAINING},
    outside=DECODER,
)

DINOV2_REGISTERS = Family(
    name="transformers-dinov2-registers",
    title="transformers DINOv2 with registers",
    names=DINOV2_NAMES,
    signature=("embeddings.patch_embeddings.projection.weight", "embeddings.register_tokens"),
    model_types=model_types("dinov2_with_registers"),
    facts=dinov2_facts,
    published=by_shape("transformers DINOv2"),
    default_transform=imagenet("DINOv2's evaluation"),
    ignored={"embeddings.mask_token": TRAINING},
    outside=DECODER,
)

DINOV3 = Family(
    name="transformers-dinov3",
    title="transformers DINOv3 ViT",
    names=DINOV3_NAMES,
    signature=("embeddings.patch_embeddings.weight", "layer.0.attention.q_proj.weight", "embeddings.register_tokens"),
    other_signatures=(
        (
            "embeddings.patch_embeddings.weight",
            "model.layer.0.attention.q_proj.weight",
            "embeddings.register_tokens",
        ),
    ),
    model_types=model_types("dinov3_vit"),
    facts=dinov3_facts,
    published=by_shape("transformers DINOv3"),
    default_transform=imagenet("DINOv3's model card", fit="squash", interpolation="bilinear"),
    ignored={"embeddings.mask_token": TRAINING},
)

FAMILIES = (DINOV2_REGISTERS, DINOV2, DINOV3)

"""Hugging Face transformers (Wolf et al. 2020): ViT, DeiT, ViTMAE, DINOv2, CLIP, SigLIP, SigLIP 2 and DINOv3."""

from __future__ import annotations

from typing import Any

from vitviz.errors import CheckpointError, shown
from vitviz.weights.families.conventions import activation, half, imagenet, pooling_of_classifier
from vitviz.weights.pieces import Family, Found, Open, Standard
from vitviz.weights.preparation import CLIP
from vitviz.weights.settings import is_number

TRAINING = "used in pretraining only"
TEXT_TOWER = "the text tower"
UNUSED_POOLER = "not used for classification by this model of transformers"

VIT_NAMES = {
    "embeddings.patch_embeddings.projection": "patch",
    "embeddings.cls_token": "cls",
    "embeddings.distillation_token": "distillation",
    "embeddings.position_embeddings": "positions",
    "encoder.layer.*.layernorm_before": "attention_norm",
    "encoder.layer.*.attention.attention.query": "query",
    "encoder.layer.*.attention.attention.key": "key",
    "encoder.layer.*.attention.attention.value": "value",
    "encoder.layer.*.attention.output.dense": "out",
    "encoder.layer.*.layernorm_after": "mlp_norm",
    "encoder.layer.*.intermediate.dense": "mlp_in",
    "encoder.layer.*.output.dense": "mlp_out",
    "layernorm": "norm",
    "pooler.dense": "representation",
    "classifier": "classifier",
    "cls_classifier": "classifier",
    "distillation_classifier": "distillation_classifier",
}
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
}
DINOV3_NAMES = {
    "embeddings.patch_embeddings": "patch",
    "embeddings.cls_token": "cls",
    "embeddings.register_tokens": "registers",
    "layer.*.norm1": "attention_norm",
    "layer.*.attention.q_proj": "query",
    "layer.*.attention.k_proj": "key",
    "layer.*.attention.v_proj": "value",
    "layer.*.attention.o_proj": "out",
    "layer.*.layer_scale1.lambda1": "attention_scale",
    "layer.*.norm2": "mlp_norm",
    "layer.*.mlp.gate_proj": "gate",
    "layer.*.mlp.up_proj": "mlp_in",
    "layer.*.mlp.down_proj": "mlp_out",
    "layer.*.layer_scale2.lambda1": "mlp_scale",
    "norm": "norm",
    "classifier": "classifier",
}
CLIP_NAMES = {
    "embeddings.patch_embedding": "patch",
    "embeddings.class_embedding": "cls",
    "embeddings.position_embedding.weight": "positions",
    "pre_layrnorm": "pre_norm",
    "encoder.layers.*.layer_norm1": "attention_norm",
    "encoder.layers.*.self_attn.q_proj": "query",
    "encoder.layers.*.self_attn.k_proj": "key",
    "encoder.layers.*.self_attn.v_proj": "value",
    "encoder.layers.*.self_attn.out_proj": "out",
    "encoder.layers.*.layer_norm2": "mlp_norm",
    "encoder.layers.*.mlp.fc1": "mlp_in",
    "encoder.layers.*.mlp.fc2": "mlp_out",
    "post_layernorm": "norm",
    "head.probe": "pool.probe",
    "head.attention.in_proj_weight": "pool.qkv.weight",
    "head.attention.in_proj_bias": "pool.qkv.bias",
    "head.attention.out_proj": "pool.out",
    "head.layernorm": "pool.norm",
    "head.mlp.fc1": "pool.mlp_in",
    "head.mlp.fc2": "pool.mlp_out",
    "visual_projection": "projection",
    "classifier": "classifier",
}
TEXT = dict.fromkeys(("text_model.*", "text_projection.*", "logit_scale", "logit_bias"), TEXT_TOWER)
POSITION_IDS = {"embeddings.position_ids": "numbers from 0 on"}


def _common(found: Found, epsilon: float, act: str) -> dict[str, Any]:
    """What every ``config.json`` of transformers says; their classes' defaults where there is none."""
    config = found.config
    patch, heads = config.size("patch_size"), config.count("num_attention_heads")
    return {
        "heads": Open() if heads is None else found.learn("heads", heads, "config.json"),
        "norm_epsilon": found.config.get("layer_norm_eps", epsilon),
        "activation": activation(found, found.config.get("hidden_act", act)),
        "image_size": config.size("image_size"),
        "stated": {
            "depth": config.count("num_hidden_layers"),
            "width": config.count("hidden_size"),
            "mlp_width": config.count("intermediate_size"),
            "channels": config.count("num_channels"),
            "patch_height": patch and patch[0],
            "patch_width": patch and patch[1],
        },
    }


def vit_facts(found: Found) -> dict[str, Any]:
    pooler = found.config.get("pooler_act", "tanh")
    if found.has("representation.weight") and pooler != "tanh":
        raise CheckpointError(f"{found.name}: pooler_act = {shown(pooler)} in its config.json; expected 'tanh'")
    pooled = "cls and distillation" if found.has("distillation_classifier.weight") else "cls"
    return {**_common(found, 1e-12, "gelu"), "position_rule": "bicubic", "pooling": pooled}


def dinov2_facts(found: Found) -> dict[str, Any]:
    gated = found.keys.get((0, "mlp_in.weight"), "").endswith("weights_in.weight")
    registers = found.has("registers")
    facts = {
        **_common(found, 1e-6, "gelu"),
        "position_rule": "bicubic antialiased" if registers else "bicubic",
        "positioned": (1,),
        "any_size": True,
        "pooling": "cls",
        **pooling_of_classifier(found),
    }
    return {**facts, "activation": "silu"} if gated else facts


def dinov3_facts(found: Found) -> dict[str, Any]:
    # Where there is no configuration: only the large ones have a gate, and theirs is SiLU.
    facts = _common(found, 1e-5, "silu" if found.has("gate.weight") else "gelu")
    base = found.config.get("rope_theta", 100.0)
    if not is_number(base) or base <= 0:
        raise CheckpointError(f"{found.name}: rope_theta = {shown(base)} in its config.json; expected a number above 0")
    return {
        **facts,
        "image_size": facts["image_size"] or (224, 224),
        "any_size": True,
        "rotary": True,
        "rotary_base": float(base),
        "pooling": "cls",
        **pooling_of_classifier(found),
    }


def clip_facts(found: Found) -> dict[str, Any]:
    facts = {**_common(found, 1e-5, "quick_gelu"), "position_rule": "bicubic", "pooling": "cls"}
    if found.has("classifier.weight"):
        # CLIPForImageClassification takes the mean of the patches as the last layer leaves them.
        found.leave("norm", UNUSED_POOLER)
        facts |= {"pooling": "mean", "final_norm": "none"}
    return facts


def siglip_facts(found: Found) -> dict[str, Any]:
    facts = {**_common(found, 1e-6, "gelu_pytorch_tanh"), "position_rule": "bicubic"}
    if found.has("classifier.weight"):
        found.leave("pool", UNUSED_POOLER)
        return {**facts, "pooling": "mean"}
    return {**facts, "pooling": "attention" if found.has("pool.probe") else "mean"}


def siglip2_facts(found: Found) -> dict[str, Any]:
    """SigLIP 2 in its NaFlex form: pixels of a patch as one vector, positions resized to any grid."""
    return {
        **siglip_facts(found),
        "position_rule": "bilinear antialiased",
        "channels_last": True,
        "patch_size": found.config.size("patch_size"),
    }


VIT = Family(
    name="transformers-vit",
    title="transformers ViT",
    names=VIT_NAMES,
    signature=("embeddings.patch_embeddings.projection.weight", "encoder.layer.0.layernorm_before.weight"),
    without=("embeddings.distillation_token",),
    model_types=("vit", "vit_msn"),
    facts=vit_facts,
    standard=half("ViTImageProcessor's defaults", fit="squash", interpolation="bilinear"),
    ignored={"embeddings.mask_token": TRAINING, **POSITION_IDS},
)

DEIT = Family(
    name="transformers-deit",
    title="transformers DeiT",
    names=VIT_NAMES,
    signature=("embeddings.patch_embeddings.projection.weight", "embeddings.distillation_token"),
    model_types=("deit",),
    facts=vit_facts,
    standard=imagenet("DeiT's evaluation"),
    ignored={"embeddings.mask_token": TRAINING},
)

MAE = Family(
    name="transformers-vit-mae",
    title="transformers ViTMAE (encoder)",
    names=VIT_NAMES,
    signature=("embeddings.patch_embeddings.projection.weight", "encoder.layer.0.layernorm_before.weight"),
    accepts=lambda candidate: candidate.config.get("model_type") == "vit_mae",
    model_types=("vit_mae",),
    facts=vit_facts,
    standard=imagenet("MAE's evaluation", fit="squash"),
    outside={"decoder.*": "the decoder with which MAE was pretrained"},
)

DINOV2 = Family(
    name="transformers-dinov2",
    title="transformers DINOv2",
    names=DINOV2_NAMES,
    signature=("embeddings.patch_embeddings.projection.weight", "encoder.layer.0.layer_scale1.lambda1"),
    without=("embeddings.register_tokens",),
    model_types=("dinov2",),
    facts=dinov2_facts,
    standard=imagenet("DINOv2's evaluation"),
    ignored={"embeddings.mask_token": TRAINING},
)

DINOV2_REGISTERS = Family(
    name="transformers-dinov2-registers",
    title="transformers DINOv2 with registers",
    names=DINOV2_NAMES,
    signature=("embeddings.patch_embeddings.projection.weight", "embeddings.register_tokens"),
    model_types=("dinov2_with_registers",),
    facts=dinov2_facts,
    standard=imagenet("DINOv2's evaluation"),
    ignored={"embeddings.mask_token": TRAINING},
)

DINOV3 = Family(
    name="transformers-dinov3",
    title="transformers DINOv3 ViT",
    names=DINOV3_NAMES,
    signature=("embeddings.patch_embeddings.weight", "layer.0.attention.q_proj.weight", "embeddings.register_tokens"),
    model_types=("dinov3_vit",),
    facts=dinov3_facts,
    standard=imagenet("DINOv3's model card", fit="squash", interpolation="bilinear"),
    ignored={"embeddings.mask_token": TRAINING},
)

CLIP_VISION = Family(
    name="transformers-clip",
    title="transformers CLIP vision",
    names=CLIP_NAMES,
    signature=("embeddings.class_embedding", "pre_layrnorm.weight", "encoder.layers.0.self_attn.q_proj.weight"),
    model_types=("clip", "clip_vision_model"),
    facts=clip_facts,
    standard=Standard(*CLIP, "CLIP's preprocessing", crop_fraction=1.0),
    ignored=POSITION_IDS,
    outside=TEXT,
)

SIGLIP = Family(
    name="transformers-siglip",
    title="transformers SigLIP vision",
    names=CLIP_NAMES,
    signature=("embeddings.patch_embedding.bias", "post_layernorm.weight", "encoder.layers.0.self_attn.q_proj.weight"),
    without=("embeddings.class_embedding",),
    accepts=lambda candidate: "siglip2" not in str(candidate.config.get("model_type")),
    model_types=("siglip", "siglip_vision_model"),
    facts=siglip_facts,
    standard=half("SiglipImageProcessor's defaults", fit="squash"),
    ignored=POSITION_IDS,
    outside=TEXT,
)

SIGLIP2 = Family(
    name="transformers-siglip2",
    title="transformers SigLIP 2 (NaFlex)",
    names=CLIP_NAMES,
    signature=("embeddings.patch_embedding.bias", "post_layernorm.weight", "encoder.layers.0.self_attn.q_proj.weight"),
    without=("embeddings.class_embedding",),
    accepts=lambda candidate: "siglip2" in str(candidate.config.get("model_type")),
    model_types=("siglip2", "siglip2_vision_model"),
    facts=siglip2_facts,
    standard=half("Siglip2ImageProcessor's defaults", fit="native", interpolation="bilinear"),
    outside=TEXT,
)

FAMILIES = (DEIT, MAE, VIT, DINOV2_REGISTERS, DINOV2, DINOV3, CLIP_VISION, SIGLIP2, SIGLIP)

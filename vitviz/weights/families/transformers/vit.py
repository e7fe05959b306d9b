"""ViT as transformers writes it, and others with its keys: DeiT, MAE, MSN, I-JEPA and the image tower of FLAVA."""

from __future__ import annotations

import math
from typing import Any

from vitviz.weights.conversion.canonical import Candidate, Family, MatchedCheckpoint
from vitviz.weights.families.conventions import clip, half, imagenet
from vitviz.weights.families.published import by_shape
from vitviz.weights.families.transformers.classes import CLASSES, DECODER, model_types
from vitviz.weights.families.transformers.towers import (
    Tower,
    common_facts,
    read_tower,
    require_biases,
    trained_size,
)

TRAINING = "used in pretraining only"
EMBEDDINGS = {
    "embeddings.patch_embeddings.projection": "patch",
    "embeddings.cls_token": "cls",
    "embeddings.distillation_token": "distillation",
    "embeddings.position_embeddings": "positions",
    "layernorm": "norm",
}
LAYERS = {
    "encoder.layer.*.layernorm_before": "attention_norm",
    "encoder.layer.*.attention.attention.query": "query",
    "encoder.layer.*.attention.attention.key": "key",
    "encoder.layer.*.attention.attention.value": "value",
    "encoder.layer.*.attention.output.dense": "out",
    "encoder.layer.*.layernorm_after": "mlp_norm",
    "encoder.layer.*.intermediate.dense": "mlp_in",
    "encoder.layer.*.output.dense": "mlp_out",
}
# Names that version 5 has in memory, and in files that torch saves.
IN_MEMORY = {
    "layers.*.layernorm_before": "attention_norm",
    "layers.*.attention.q_proj": "query",
    "layers.*.attention.k_proj": "key",
    "layers.*.attention.v_proj": "value",
    "layers.*.attention.o_proj": "out",
    "layers.*.layernorm_after": "mlp_norm",
    "layers.*.mlp.fc1": "mlp_in",
    "layers.*.mlp.fc2": "mlp_out",
}
HEADS = {
    "pooler.dense": "representation",
    "classifier": "classifier",
    "cls_classifier": "classifier",
    "distillation_classifier": "distillation_classifier",
}
NAMES = {**EMBEDDINGS, **LAYERS, **IN_MEMORY, **HEADS}
# For MSN with a classifier, version 5 writes the layers without the prefix of the other keys.
SPLIT = {**NAMES, **{f"vit.{name}": canonical_key for name, canonical_key in EMBEDDINGS.items()}}

PATCH, LAYER = "embeddings.patch_embeddings.projection.weight", "encoder.layer.0.layernorm_before.weight"
IN_MEMORY_LAYER = "layers.0.layernorm_before.weight"
SIGNATURE, SIGNATURE_IN_MEMORY = (PATCH, LAYER), (PATCH, IN_MEMORY_LAYER)
SIGNATURE_SPLIT = (f"vit.{PATCH}", LAYER)
IGNORED = {"embeddings.mask_token": TRAINING, "embeddings.position_ids": "numbers from 0 on"}


def vit_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    tower = read_tower(checkpoint)
    if tower is not None and checkpoint.has("representation.weight") and "pooler_act" in tower.vision_class.defaults:
        tower.settings.only("pooler_act", "tanh")
        outputs = checkpoint.shape("representation.weight")[0]
        if (tower.settings.get("pooler_output_size") or tower.settings.count("hidden_size")) != outputs:
            raise tower.settings.refuse("pooler_output_size", f"{outputs}, as its weights are")
    elif tower is not None:
        tower.settings.skip({"pooler_act", "pooler_output_size"})
    pooling = "cls and distillation" if checkpoint.has("distillation_classifier.weight") else "cls"
    return {**_facts(checkpoint, tower, "vit"), "pooling": pooling}


def ijepa_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    return {**_facts(checkpoint, read_tower(checkpoint), "ijepa"), "pooling": "mean"}


def _facts(checkpoint: MatchedCheckpoint, tower: Tower | None, usual: str) -> dict[str, Any]:
    require_biases(checkpoint, tower, query="qkv_bias", key="qkv_bias", value="qkv_bias")
    facts = {**common_facts(checkpoint, tower, CLASSES[usual]), **trained_size(tower, "bicubic")}
    if tower is not None:
        facts["stated"] = {**facts["stated"], "mlp_width": tower.settings.count("intermediate_size")}
    return facts


def _has_model_type(*kinds: str) -> Any:
    """A check whether the configuration names one of these, for families that share their keys."""
    return lambda candidate: candidate.config.get("model_type") in model_types(*kinds)


def _is_ijepa(candidate: Candidate) -> bool:
    """Whether the configuration names I-JEPA or, without one, whether the number of positions is a square."""
    positions = candidate.shapes.get("embeddings.position_embeddings", ())[-2:-1]
    square = bool(positions) and math.isqrt(positions[0]) ** 2 == positions[0]
    return candidate.config.get("model_type", "ijepa" if square else None) == "ijepa"


VIT = Family(
    name="transformers-vit",
    title="transformers ViT",
    names=SPLIT,
    signature=SIGNATURE,
    other_signatures=(SIGNATURE_IN_MEMORY, SIGNATURE_SPLIT),
    excluded_keys=("embeddings.distillation_token",),
    model_types=model_types("vit", "vit_msn"),
    facts=vit_facts,
    published=by_shape("transformers ViT"),
    default_transform=half("ViTImageProcessor's defaults", fit="squash", interpolation="bilinear"),
    ignored=IGNORED,
    outside=DECODER,
)

DEIT = Family(
    name="transformers-deit",
    title="transformers DeiT",
    names=NAMES,
    signature=(PATCH, "embeddings.distillation_token"),
    model_types=model_types("deit"),
    facts=vit_facts,
    published=by_shape("transformers DeiT"),
    default_transform=imagenet("DeiT's evaluation"),
    ignored=IGNORED,
    outside=DECODER,
)

MAE = Family(
    name="transformers-vit-mae",
    title="transformers ViTMAE (encoder)",
    names=NAMES,
    signature=SIGNATURE,
    other_signatures=(SIGNATURE_IN_MEMORY,),
    accepts=_has_model_type("vit_mae"),
    model_types=model_types("vit_mae"),
    facts=vit_facts,
    default_transform=imagenet("MAE's evaluation", fit="squash"),
    outside={"decoder.*": "the decoder with which MAE was pretrained"},
)

IJEPA = Family(
    name="transformers-ijepa",
    title="transformers I-JEPA",
    names={
        name: canonical_key
        for name, canonical_key in NAMES.items()
        if canonical_key not in ("cls", "distillation", "representation")
    },
    signature=SIGNATURE,
    other_signatures=(SIGNATURE_IN_MEMORY,),
    excluded_keys=("embeddings.cls_token",),
    accepts=_is_ijepa,
    model_types=model_types("ijepa"),
    facts=ijepa_facts,
    default_transform=imagenet("I-JEPA's evaluation"),
    ignored=IGNORED,
)

FLAVA = Family(
    name="transformers-flava",
    title="transformers FLAVA, image tower",
    names=NAMES,
    signature=SIGNATURE,
    accepts=_has_model_type("flava_image_model"),
    model_types=model_types("flava_image_model"),
    facts=vit_facts,
    default_transform=clip("FlavaImageProcessor's defaults", fit="squash"),
    ignored=IGNORED,
    outside=dict.fromkeys(
        (
            *("text_model.*", "multimodal_model.*", "image_codebook.*"),
            *("image_projection.*", "text_projection.*", "image_to_mm_projection.*", "text_to_mm_projection.*"),
            *("logit_scale", "mim_head.*", "mlm_head.*", "itm_head.*", "mmm_image_head.*", "mmm_text_head.*"),
        ),
        "the models of text and of both, and what connects them",
    ),
)

FAMILIES = (DEIT, MAE, FLAVA, IJEPA, VIT)

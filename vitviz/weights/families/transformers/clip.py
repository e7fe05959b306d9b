"""Vision towers of CLIP, SigLIP and their descendants as transformers writes them, alone or inside another model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import quote
from vitviz.weights.conversion.canonical import (
    Candidate,
    Family,
    MatchedCheckpoint,
    OpenFact,
    PublishedCheckpoint,
)
from vitviz.weights.families.conventions import clip, half
from vitviz.weights.families.published import by_shape
from vitviz.weights.families.transformers.classes import CLASSES, LANGUAGE_MODEL, TEXT_TOWER, model_types
from vitviz.weights.families.transformers.towers import Tower, common_facts, read_tower, trained_size

UNUSED_POOLER = "not used for classification by this model of transformers"
UNUSED_HEAD = "vision_use_head is false in its configuration"
LAYERS = {
    "layer_norm1": "attention_norm",
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key",
    "self_attn.v_proj": "value",
    "self_attn.out_proj": "out",
    "layer_norm2": "mlp_norm",
    "mlp.fc1": "mlp_in",
    "mlp.fc2": "mlp_out",
}
NAMES = {
    "embeddings.patch_embedding": "patch",
    "embeddings.class_embedding": "cls",
    "embeddings.position_embedding.weight": "positions",
    "pre_layrnorm": "pre_norm",
    **{f"encoder.layers.*.{name}": canonical_key for name, canonical_key in LAYERS.items()},
    # AltCLIP as version 5 writes it.
    **{f"encoder.layer.*.{name}": canonical_key for name, canonical_key in LAYERS.items()},
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
POSITION_IDS = {"embeddings.position_ids": "numbers from 0 on"}
# Keys outside the tower.
OUTSIDE = {
    **dict.fromkeys(("text_model.*", "text_projection.*", "logit_scale", "logit_bias"), TEXT_TOWER),
    **dict.fromkeys(
        (
            "output.*",
            # Of GIT, whose projection is a Sequential, unlike that of CLIP.
            *("embeddings.word_embeddings.*", "embeddings.position_embeddings.*", "embeddings.LayerNorm.*"),
            *("encoder.layer.*", "visual_projection.*"),
        ),
        LANGUAGE_MODEL,
    ),
    "decoder.*": "the decoder of segmentation",
}
CLIP_LIKE = (
    *("clip_vision_model", "metaclip_2_vision_model", "chinese_clip_vision_model", "altclip_vision_model"),
    *("clipseg_vision_model", "git_vision_model"),
)
SIGLIP2_TYPES = model_types("siglip2_vision_model")


def clip_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    tower = read_tower(checkpoint)
    facts = {**_facts(checkpoint, tower, "clip_vision_model"), **trained_size(tower, "bicubic"), "pooling": "cls"}
    if checkpoint.has("classifier.weight"):
        # CLIPForImageClassification reads the mean of the patches after the last layer, without the final norm.
        checkpoint.ignore("norm", UNUSED_POOLER)
        facts |= {"pooling": "mean", "final_norm": "none"}
    return facts


def siglip_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    tower = read_tower(checkpoint)
    facts = {**_facts(checkpoint, tower, "siglip_vision_model"), **trained_size(tower, "bicubic")}
    _require_dimensions(checkpoint, 4, "a convolution, as SigLIP has it at a fixed size")
    if tower is None and not checkpoint.has("pool.probe"):
        # The towers of Idefics and SmolVLM have the same keys.
        facts["position_rule"] = OpenFact("bicubic")
    return {**facts, **_pooling(checkpoint, tower)}


def siglip2_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    """Facts of SigLIP 2 NaFlex, which embeds a patch as one vector of pixels and resizes positions to any grid."""
    tower = read_tower(checkpoint)
    facts = {
        **_facts(checkpoint, tower, "siglip2_vision_model"),
        "position_rule": "bilinear antialiased",
        "channels_last": True,
        **_pooling(checkpoint, tower),
    }
    _require_dimensions(checkpoint, 2, "a matrix, as NaFlex has it")
    if tower is not None:
        patch, side = tower.size("patch_size"), math.isqrt(tower.settings.count("num_patches"))
        if side**2 != tower.settings.count("num_patches"):
            raise tower.settings.refuse("num_patches", "the number of patches of a square")
        stated = {**facts["stated"], "image_height": side * patch[0], "image_width": side * patch[1]}
        facts |= {"patch_size": patch, "stated": stated}
    return facts


def _facts(checkpoint: MatchedCheckpoint, tower: Tower | None, usual: str) -> dict[str, Any]:
    facts = common_facts(checkpoint, tower, CLASSES[usual])
    if tower is not None:
        facts["stated"] = {**facts["stated"], "mlp_width": tower.settings.count("intermediate_size")}
    return facts


def _pooling(checkpoint: MatchedCheckpoint, tower: Tower | None) -> dict[str, Any]:
    """The pooling of a SigLIP tower: attention with its head, the mean of the patches without it."""
    has_head = checkpoint.has("pool.probe") if tower is None else tower.settings.flag("vision_use_head", True)
    if checkpoint.has("classifier.weight"):
        checkpoint.ignore("pool", UNUSED_POOLER)
        return {"pooling": "mean"}
    if not has_head:
        checkpoint.ignore("pool", UNUSED_HEAD)
        return {"pooling": _record_mean(checkpoint)}
    if not checkpoint.has("pool.probe"):
        raise checkpoint.missing_key("pool.probe")
    return {"pooling": "attention"}


def _record_mean(checkpoint: MatchedCheckpoint) -> str:
    source = "this tower pools nothing"
    checkpoint.record("features", "the mean of the patches after the last norm", source)
    return "mean"


def _published_siglip(checkpoint: MatchedCheckpoint) -> Sequence[PublishedCheckpoint]:
    """Published checkpoints of these shapes; none for a tower without head, which may be that of a language model."""
    return by_shape("transformers SigLIP")(checkpoint) if checkpoint.has("pool.probe") else ()


def _require_dimensions(checkpoint: MatchedCheckpoint, count: int, expected: str) -> None:
    shape = checkpoint.shape("patch.weight")
    if shape and len(shape) != count:
        key = quote(checkpoint.keys[None, "patch.weight"])
        raise CheckpointError(f"{checkpoint.name}: {key} has the shape {shape}; expected {expected}")


def _is_naflex(candidate: Candidate) -> bool:
    """Whether the configuration names NaFlex or, without one, whether the patch embedding is a matrix."""
    if "model_type" in candidate.config:
        return candidate.config["model_type"] in SIGLIP2_TYPES
    return len(candidate.shapes.get("embeddings.patch_embedding.weight", ())) == 2


CLIP_VISION = Family(
    name="transformers-clip",
    title="transformers CLIP vision",
    names=NAMES,
    signature=("embeddings.class_embedding", "pre_layrnorm.weight", "encoder.layers.0.self_attn.q_proj.weight"),
    other_signatures=(
        ("embeddings.class_embedding", "pre_layrnorm.weight", "encoder.layer.0.self_attn.q_proj.weight"),
    ),
    model_types=model_types(*CLIP_LIKE),
    facts=clip_facts,
    published=by_shape("transformers CLIP"),
    default_transform=clip("CLIP's preprocessing", crop_fraction=1.0),
    ignored=POSITION_IDS,
    outside=OUTSIDE,
)

_SIGLIP_KEYS = ("embeddings.patch_embedding.bias", "post_layernorm.weight", "encoder.layers.0.self_attn.q_proj.weight")

SIGLIP = Family(
    name="transformers-siglip",
    title="transformers SigLIP vision",
    names=NAMES,
    signature=_SIGLIP_KEYS,
    excluded_keys=("embeddings.class_embedding",),
    accepts=lambda candidate: not _is_naflex(candidate),
    model_types=model_types("siglip_vision_model"),
    facts=siglip_facts,
    published=_published_siglip,
    default_transform=half("SiglipImageProcessor's defaults", fit="squash"),
    ignored=POSITION_IDS,
    outside=OUTSIDE,
)

SIGLIP2 = Family(
    name="transformers-siglip2",
    title="transformers SigLIP 2 (NaFlex)",
    names=NAMES,
    signature=_SIGLIP_KEYS,
    excluded_keys=("embeddings.class_embedding",),
    accepts=_is_naflex,
    model_types=SIGLIP2_TYPES,
    facts=siglip2_facts,
    published=by_shape("transformers NaFlex"),
    default_transform=half("Siglip2ImageProcessor's defaults", fit="native", interpolation="bilinear"),
    outside=OUTSIDE,
)

FAMILIES = (CLIP_VISION, SIGLIP2, SIGLIP)

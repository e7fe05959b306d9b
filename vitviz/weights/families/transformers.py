"""ViT as Hugging Face transformers (Wolf et al. 2020) writes it."""

from __future__ import annotations

from functools import partial
from typing import Any

from vitviz.errors.kinds import UnknownFamilyError
from vitviz.weights.conversion.canonical import Family, MatchedCheckpoint, OpenFact
from vitviz.weights.families.published import by_shape
from vitviz.weights.metadata.normalisations import HALVES
from vitviz.weights.metadata.rules import PreprocessingRule
from vitviz.weights.metadata.sides import both_sides

TRAINING = "used in pretraining only"
OUTSIDE = "the decoder of texts, or of masked patches"
NAMES = {
    "embeddings.patch_embeddings.projection": "patch_embedding",
    "embeddings.cls_token": "prefix_tokens.cls",
    "embeddings.position_embeddings": "positions",
    "layernorm": "norm",
    "encoder.layer.*.layernorm_before": "layers.*.attention_norm",
    "encoder.layer.*.attention.attention.query": "layers.*.attention.qkv.query",
    "encoder.layer.*.attention.attention.key": "layers.*.attention.qkv.key",
    "encoder.layer.*.attention.attention.value": "layers.*.attention.qkv.value",
    "encoder.layer.*.attention.output.dense": "layers.*.attention.projection",
    "encoder.layer.*.layernorm_after": "layers.*.mlp_norm",
    "encoder.layer.*.intermediate.dense": "layers.*.mlp.0",
    "encoder.layer.*.output.dense": "layers.*.mlp.2",
    # Names that version 5 has in memory, and in files that torch saves.
    "layers.*.layernorm_before": "layers.*.attention_norm",
    "layers.*.attention.q_proj": "layers.*.attention.qkv.query",
    "layers.*.attention.k_proj": "layers.*.attention.qkv.key",
    "layers.*.attention.v_proj": "layers.*.attention.qkv.value",
    "layers.*.attention.o_proj": "layers.*.attention.projection",
    "layers.*.layernorm_after": "layers.*.mlp_norm",
    "layers.*.mlp.fc1": "layers.*.mlp.0",
    "layers.*.mlp.fc2": "layers.*.mlp.2",
    "pooler.dense": "representation.0",
    "classifier": "classifier",
}
PATCH = "embeddings.patch_embeddings.projection.weight"
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu tanh", "gelu_pytorch_tanh": "gelu tanh", "quick_gelu": "quick gelu"}


def vit_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    """Of ``config.json``, with the defaults of transformers' ``ViTConfig``; open without such a file.

    Raises:
        UnknownFamilyError: it describes a network that vitviz's own is not.
    """
    config = checkpoint.config
    facts: dict[str, Any] = {"position_rule": "bicubic", "pooling": "cls"}
    if not config:
        usual = {"heads": OpenFact(), "norm_epsilon": OpenFact(1e-12), "activation": OpenFact("gelu")}
        return {**facts, **usual, "image_size": None}
    activation = config.get("hidden_act", "gelu")
    is_other_pooler = checkpoint.has("representation.0.weight") and config.get("pooler_act", "tanh") != "tanh"
    size, patch = both_sides(config.get("image_size", 224)), both_sides(config.get("patch_size", 16))
    if activation not in ACTIVATIONS or is_other_pooler or config.get("pruned_heads") or not size or not patch:
        raise UnknownFamilyError(f"{checkpoint.name}: its config.json describes another ViT than vitviz's own")
    # To resize positions, transformers assumes a square grid.
    is_square = size[0] // patch[0] == size[1] // patch[1]
    return {
        **facts,
        "heads": checkpoint.record("heads", config.get("num_attention_heads", 12), "config.json"),
        "norm_epsilon": config.get("layer_norm_eps", 1e-12),
        "activation": ACTIVATIONS[activation],
        "image_size": size,
        "position_rule": "bicubic" if is_square else "fixed",
        "stated": {
            "depth": config.get("num_hidden_layers", 12),
            "width": config.get("hidden_size", 768),
            "mlp_width": config.get("intermediate_size", 3072),
            "channels": config.get("num_channels", 3),
            "qkv_bias": config.get("qkv_bias", True),
            "patch_height": patch[0],
            "patch_width": patch[1],
        },
    }


VIT = Family(
    name="transformers-vit",
    title="transformers ViT",
    names=NAMES,
    signatures=(
        (PATCH, "encoder.layer.0.layernorm_before.weight"),
        (PATCH, "layers.0.layernorm_before.weight"),
    ),
    excluded_keys=("embeddings.distillation_token",),
    model_types=("vit",),
    facts=vit_facts,
    published=partial(by_shape, "transformers ViT"),
    default_transform=PreprocessingRule.convention(
        HALVES, "ViTImageProcessor's defaults", fit="squash", interpolation="bilinear"
    ),
    ignored={"embeddings.mask_token": TRAINING, "embeddings.position_ids": "numbers from 0 on"},
    outside={"decoder.*": OUTSIDE},
)

"""Google's checkpoints as NumPy archives (google-research/vision_transformer), and PyTorch ports of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange

from vitviz.weights.conversion.canonical import QUERY_KEY_VALUE, Family, MatchedCheckpoint
from vitviz.weights.metadata.normalisations import HALVES
from vitviz.weights.metadata.rules import PreprocessingRule

BLOCK = "Transformer/encoderblock_*"
ATTENTION = {
    **{part: f"layers.*.attention.qkv.{part}" for part in QUERY_KEY_VALUE},
    "out": "layers.*.attention.projection",
}


def _npz_names(attention: int, mlp_norm: int, mlp: int) -> dict[str, str]:
    """Names for one numbering of a block's modules, which flax has changed over the years."""
    names = {
        f"{BLOCK}/LayerNorm_0": "layers.*.attention_norm",
        **{
            f"{BLOCK}/MultiHeadDotProductAttention_{attention}/{part}": canonical_key
            for part, canonical_key in ATTENTION.items()
        },
        f"{BLOCK}/LayerNorm_{mlp_norm}": "layers.*.mlp_norm",
        f"{BLOCK}/MlpBlock_{mlp}/Dense_0": "layers.*.mlp.0",
        f"{BLOCK}/MlpBlock_{mlp}/Dense_1": "layers.*.mlp.2",
    }
    suffixes = {
        canonical_key: "scale" if canonical_key.endswith("norm") else "kernel" for canonical_key in names.values()
    }
    weights = {f"{name}/{suffixes[canonical_key]}": f"{canonical_key}.weight" for name, canonical_key in names.items()}
    return weights | {f"{name}/bias": f"{canonical_key}.bias" for name, canonical_key in names.items()}


def npz_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    shape = checkpoint.shape("layers.*.attention.qkv.query.weight")
    return {
        "heads": checkpoint.record("heads", shape[1] if len(shape) == 3 else 1, "shape of the queries' kernel"),
        "norm_epsilon": 1e-6,
        "position_rule": "bilinear corners",
        "pooling": "cls" if checkpoint.has("prefix_tokens.cls") else "mean",
    }


def port_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    return {**npz_facts(checkpoint), "norm_epsilon": 1e-5}


def convert_attention(canonical_key: str, tensor: torch.Tensor, facts: Mapping[str, Any]) -> torch.Tensor:
    """A tensor with the axes of heads merged: ``"in head dim"`` for queries, keys, values, ``"head dim out"`` after."""
    if canonical_key.endswith("attention.projection.weight"):
        return rearrange(tensor, "head dim out -> out (head dim)")
    if ".attention.qkv." in canonical_key:
        if canonical_key.endswith("weight"):
            return rearrange(tensor, "width head dim -> (head dim) width")
        return rearrange(tensor, "head dim -> (head dim)")
    return tensor


def convert_npz(canonical_key: str, tensor: torch.Tensor, facts: Mapping[str, Any]) -> torch.Tensor:
    """A tensor of JAX in torch's layout: JAX transposes matrices and keeps channels last."""
    if canonical_key == "patch_embedding.weight":
        return rearrange(tensor, "height column channel width -> width channel height column")
    if ".attention." in canonical_key:
        return convert_attention(canonical_key, tensor, facts)
    return tensor.mT if canonical_key.endswith(".weight") and tensor.ndim == 2 else tensor


TRANSFORM = PreprocessingRule.convention(
    HALVES, "google-research/vision_transformer", fit="squash", interpolation="bilinear"
)

FAMILIES = (
    Family(
        name="google-npz",
        title="Google's JAX .npz",
        names={
            "embedding/kernel": "patch_embedding.weight",
            "embedding/bias": "patch_embedding.bias",
            "cls": "prefix_tokens.cls",
            "Transformer/posembed_input/pos_embedding": "positions",
            "pos_embedding": "positions",
            **_npz_names(1, 2, 3),
            **_npz_names(0, 1, 0),
            "Transformer/encoder_norm/scale": "norm.weight",
            "Transformer/encoder_norm/bias": "norm.bias",
            "pre_logits/kernel": "representation.0.weight",
            "pre_logits/bias": "representation.0.bias",
            "head/kernel": "classifier.weight",
            "head/bias": "classifier.bias",
        },
        signatures=(("embedding/kernel", "Transformer/encoder_norm/scale"),),
        facts=npz_facts,
        default_transform=TRANSFORM,
        convert=convert_npz,
    ),
    Family(
        name="jax-port",
        title="PyTorch port of the JAX ViT",
        names={
            "embedding": "patch_embedding",
            "cls_token": "prefix_tokens.cls",
            "transformer.pos_embedding.pos_embedding": "positions",
            "transformer.encoder_layers.*.norm1": "layers.*.attention_norm",
            **{f"transformer.encoder_layers.*.attn.{part}": canonical_key for part, canonical_key in ATTENTION.items()},
            "transformer.encoder_layers.*.norm2": "layers.*.mlp_norm",
            "transformer.encoder_layers.*.mlp.fc1": "layers.*.mlp.0",
            "transformer.encoder_layers.*.mlp.fc2": "layers.*.mlp.2",
            "transformer.encoder_layers.*.mlp.fc_1": "layers.*.mlp.0",
            "transformer.encoder_layers.*.mlp.fc_2": "layers.*.mlp.2",
            "transformer.norm": "norm",
            "classifier": "classifier",
        },
        signatures=(("embedding.weight", "transformer.pos_embedding.pos_embedding", "transformer.norm.weight"),),
        facts=port_facts,
        default_transform=TRANSFORM,
        convert=convert_attention,
    ),
)

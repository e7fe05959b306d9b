"""Vision Transformers written from scratch with einops: vit-pytorch, and layouts of tutorials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange

from vitviz.weights.conversion.canonical import Family, MatchedCheckpoint, OpenFact
from vitviz.weights.metadata.normalisations import HALVES
from vitviz.weights.metadata.rules import PreprocessingRule

VIT_PYTORCH_LAYER = "transformer.layers.*"
VIT_PYTORCH_NAMES = {
    "to_patch_embedding.1": "patch_norm_before",
    "to_patch_embedding.2": "patch",
    "to_patch_embedding.3": "patch_norm_after",
    "cls_token": "cls",
    "pos_embedding": "positions",
    f"{VIT_PYTORCH_LAYER}.0.norm": "attention_norm",
    f"{VIT_PYTORCH_LAYER}.0.to_qkv": "qkv",
    f"{VIT_PYTORCH_LAYER}.0.to_out.0": "out",
    f"{VIT_PYTORCH_LAYER}.1.net.0": "mlp_norm",
    f"{VIT_PYTORCH_LAYER}.1.net.1": "mlp_in",
    f"{VIT_PYTORCH_LAYER}.1.net.4": "mlp_out",
    "transformer.norm": "norm",
    "mlp_head": "classifier",
}


def _first_names(attribute: str) -> dict[str, str]:
    """Names of a layer in vit-pytorch's first layout, whose wrapper keeps the wrapped module under ``attribute``."""
    return {
        f"{VIT_PYTORCH_LAYER}.0.norm": "attention_norm",
        f"{VIT_PYTORCH_LAYER}.0.{attribute}.to_qkv": "qkv",
        f"{VIT_PYTORCH_LAYER}.0.{attribute}.to_out.0": "out",
        f"{VIT_PYTORCH_LAYER}.1.norm": "mlp_norm",
        f"{VIT_PYTORCH_LAYER}.1.{attribute}.net.0": "mlp_in",
        f"{VIT_PYTORCH_LAYER}.1.{attribute}.net.3": "mlp_out",
    }


VIT_PYTORCH_FIRST_NAMES = {
    "to_patch_embedding.1": "patch",
    "cls_token": "cls",
    "pos_embedding": "positions",
    **_first_names("fn"),
    **_first_names("attention_or_mlp"),
    "mlp_head.0": "norm",
    "mlp_head.1": "classifier",
}
MULTIHEAD_NAMES = {
    "image_to_embeddings.0.projector": "patch",
    "image_to_embeddings.0.projector.1": "patch",
    "image_to_embeddings.1.token": "cls",
    "image_to_embeddings.2.position_embeddings": "positions",
    "transformer.layers.*.normalization": "attention_norm",
    "transformer.layers.*.attention.in_proj_weight": "qkv.weight",
    "transformer.layers.*.attention.in_proj_bias": "qkv.bias",
    "transformer.layers.*.attention.out_proj": "out",
    "transformer.layers.*.feed_forward.0": "mlp_norm",
    "transformer.layers.*.feed_forward.1": "mlp_in",
    "transformer.layers.*.feed_forward.4": "mlp_out",
    "transformer.norm": "norm",
    "head": "classifier",
    "head.linear": "classifier",
}
SEQUENTIAL_NAMES = {
    "0.projection.0": "patch",
    "0.cls_token": "cls",
    "0.positions": "positions",
    "1.*.0.fn.0": "attention_norm",
    "1.*.0.fn.1.qkv": "qkv",
    "1.*.0.fn.1.queries": "query",
    "1.*.0.fn.1.keys": "key",
    "1.*.0.fn.1.values": "value",
    "1.*.0.fn.1.projection": "out",
    "1.*.1.fn.0": "mlp_norm",
    "1.*.1.fn.1.0": "mlp_in",
    "1.*.1.fn.1.3": "mlp_out",
    "2.1": "norm",
    "2.2": "classifier",
}


def vit_pytorch_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    if checkpoint.has("out.weight"):
        heads = OpenFact(usual=max(1, (checkpoint.shape("qkv.weight") or (0,))[0] // 3 // 64))
    else:
        heads = checkpoint.record(
            "heads", 1, "no projection after attention, which this layout has beside several heads"
        )
    return {
        "heads": heads,
        "norm_epsilon": 1e-5,
        "position_rule": "reading order",
        "pooling": _pooling(checkpoint),
        "channels_last": True,
        # With one head as wide as a token, vit-pytorch has no output projection.
        "bare_attention": True,
    }


def _pooling(checkpoint: MatchedCheckpoint) -> Any:
    """The pooling, if the CLS token's shape tells it.

    In releases with a CLS token of two dimensions, it is empty for mean pooling. Older ones have three dimensions and
    the same tokens for both poolings.
    """
    shape = checkpoint.shape("cls")
    if len(shape) > 2:
        # "mean" meant the mean of all tokens then.
        return OpenFact(usual="cls")
    return "cls" if shape[:1] != (0,) else "mean"


def vit_pytorch_first_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    # "mean" meant the mean of all tokens then.
    return {**vit_pytorch_facts(checkpoint), "pooling": OpenFact(usual="cls"), "final_norm": "after pooling"}


def multihead_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    return {
        "heads": OpenFact(),
        "norm_epsilon": 1e-5,
        "position_rule": "reading order",
        "pooling": "cls",
        "channels_last": True,
    }


def sequential_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    return {
        "heads": OpenFact(usual=8),
        "norm_epsilon": 1e-5,
        "attention_scale": 1.0,
        "scaled_by_width": checkpoint.has("qkv.weight"),
        "position_rule": "fixed",
        "pooling": "mean of all",
        "final_norm": "after pooling",
    }


def convert_sequential(canonical_key: str, tensor: torch.Tensor, facts: Mapping[str, Any]) -> torch.Tensor:
    """Group queries, keys and values, which alternate, and move the factor after the softmax into ``out``."""
    if canonical_key in ("qkv.weight", "qkv.bias"):
        return rearrange(tensor, "(head dim part) ... -> (part head dim) ...", head=facts["heads"], part=3)
    if canonical_key == "out.weight":
        # This layout scales the weights after the softmax, not the scores, by the width of the token or of a head.
        width = len(tensor)
        return tensor * (width if facts["scaled_by_width"] else max(1, width // facts["heads"])) ** -0.5
    return tensor


VIT_PYTORCH = Family(
    name="vit-pytorch",
    title="vit-pytorch ViT",
    names=VIT_PYTORCH_NAMES,
    signature=("to_patch_embedding.2.weight", "pos_embedding", "transformer.layers.0.0.to_qkv.weight"),
    facts=vit_pytorch_facts,
    default_transform=PreprocessingRule.convention(
        HALVES, "vitviz: vit-pytorch has no preprocessing of its own", fit="squash"
    ),
)

VIT_PYTORCH_FIRST = Family(
    name="vit-pytorch-first",
    title="vit-pytorch ViT, first layout",
    names=VIT_PYTORCH_FIRST_NAMES,
    signature=("to_patch_embedding.1.weight", "pos_embedding", "transformer.layers.0.0.norm.weight"),
    excluded_keys=("to_patch_embedding.2.weight", "transformer.norm.weight"),
    facts=vit_pytorch_first_facts,
    default_transform=PreprocessingRule.convention(
        HALVES, "vitviz: vit-pytorch has no preprocessing of its own", fit="squash"
    ),
)

MULTIHEAD = Family(
    name="multihead",
    title="ViT on torch.nn.MultiheadAttention",
    names=MULTIHEAD_NAMES,
    signature=("image_to_embeddings.1.token", "transformer.layers.0.attention.in_proj_weight"),
    facts=multihead_facts,
    default_transform=PreprocessingRule.convention(
        HALVES, "vitviz: this layout has no preprocessing of its own", fit="squash"
    ),
)

SEQUENTIAL = Family(
    name="sequential",
    title="einops ViT as nn.Sequential",
    names=SEQUENTIAL_NAMES,
    signature=("0.positions", "1.0.0.fn.1.projection.weight", "2.2.weight"),
    facts=sequential_facts,
    default_transform=PreprocessingRule.convention(
        HALVES, "vitviz: this layout has no preprocessing of its own", fit="squash"
    ),
    convert=convert_sequential,
)

FAMILIES = (VIT_PYTORCH, VIT_PYTORCH_FIRST, MULTIHEAD, SEQUENTIAL)

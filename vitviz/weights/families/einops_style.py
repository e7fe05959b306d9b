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


def _first_names(attribute: str) -> dict[str, str]:
    """Names of a layer in vit-pytorch's first layout, whose wrapper keeps the wrapped module under ``attribute``."""
    return {
        f"{VIT_PYTORCH_LAYER}.0.norm": "layers.*.attention_norm",
        f"{VIT_PYTORCH_LAYER}.0.{attribute}.to_qkv": "layers.*.attention.qkv",
        f"{VIT_PYTORCH_LAYER}.0.{attribute}.to_out.0": "layers.*.attention.projection",
        f"{VIT_PYTORCH_LAYER}.1.norm": "layers.*.mlp_norm",
        f"{VIT_PYTORCH_LAYER}.1.{attribute}.net.0": "layers.*.mlp.0",
        f"{VIT_PYTORCH_LAYER}.1.{attribute}.net.3": "layers.*.mlp.2",
    }


def vit_pytorch_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    if checkpoint.has("layers.*.attention.projection.weight"):
        heads = OpenFact(usual=max(1, (checkpoint.shape("layers.*.attention.qkv.weight") or (0,))[0] // 3 // 64))
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
    shape = checkpoint.shape("prefix_tokens.cls")
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
        "scaled_by_width": checkpoint.has("layers.*.attention.qkv.weight"),
        "position_rule": "fixed",
        "pooling": "mean of all",
        "final_norm": "after pooling",
    }


def convert_sequential(canonical_key: str, tensor: torch.Tensor, facts: Mapping[str, Any]) -> torch.Tensor:
    """Group queries, keys and values, which alternate, and move the factor after the softmax into ``out``."""
    if canonical_key.endswith(("attention.qkv.weight", "attention.qkv.bias")):
        return rearrange(tensor, "(head dim part) ... -> (part head dim) ...", head=facts["heads"], part=3)
    if canonical_key.endswith("attention.projection.weight"):
        # This layout scales the weights after the softmax, not the scores, by the width of the token or of a head.
        width = len(tensor)
        return tensor * (width if facts["scaled_by_width"] else max(1, width // facts["heads"])) ** -0.5
    return tensor


FAMILIES = (
    Family(
        name="vit-pytorch",
        title="vit-pytorch ViT",
        names={
            "to_patch_embedding.1": "patch_norms.0",
            "to_patch_embedding.2": "patch_embedding",
            "to_patch_embedding.3": "patch_norms.1",
            "cls_token": "prefix_tokens.cls",
            "pos_embedding": "positions",
            f"{VIT_PYTORCH_LAYER}.0.norm": "layers.*.attention_norm",
            f"{VIT_PYTORCH_LAYER}.0.to_qkv": "layers.*.attention.qkv",
            f"{VIT_PYTORCH_LAYER}.0.to_out.0": "layers.*.attention.projection",
            f"{VIT_PYTORCH_LAYER}.1.net.0": "layers.*.mlp_norm",
            f"{VIT_PYTORCH_LAYER}.1.net.1": "layers.*.mlp.0",
            f"{VIT_PYTORCH_LAYER}.1.net.4": "layers.*.mlp.2",
            "transformer.norm": "norm",
            "mlp_head": "classifier",
        },
        signatures=(("to_patch_embedding.2.weight", "pos_embedding", "transformer.layers.0.0.to_qkv.weight"),),
        facts=vit_pytorch_facts,
        default_transform=PreprocessingRule.convention(
            HALVES, "vitviz: vit-pytorch has no preprocessing of its own", fit="squash"
        ),
    ),
    Family(
        name="vit-pytorch-first",
        title="vit-pytorch ViT, first layout",
        names={
            "to_patch_embedding.1": "patch_embedding",
            "cls_token": "prefix_tokens.cls",
            "pos_embedding": "positions",
            **_first_names("fn"),
            **_first_names("attention_or_mlp"),
            "mlp_head.0": "norm",
            "mlp_head.1": "classifier",
        },
        signatures=(("to_patch_embedding.1.weight", "pos_embedding", "transformer.layers.0.0.norm.weight"),),
        excluded_keys=("to_patch_embedding.2.weight", "transformer.norm.weight"),
        facts=vit_pytorch_first_facts,
        default_transform=PreprocessingRule.convention(
            HALVES, "vitviz: vit-pytorch has no preprocessing of its own", fit="squash"
        ),
    ),
    Family(
        name="multihead",
        title="ViT on torch.nn.MultiheadAttention",
        names={
            "image_to_embeddings.0.projector": "patch_embedding",
            "image_to_embeddings.0.projector.1": "patch_embedding",
            "image_to_embeddings.1.token": "prefix_tokens.cls",
            "image_to_embeddings.2.position_embeddings": "positions",
            "transformer.layers.*.normalization": "layers.*.attention_norm",
            "transformer.layers.*.attention.in_proj_weight": "layers.*.attention.qkv.weight",
            "transformer.layers.*.attention.in_proj_bias": "layers.*.attention.qkv.bias",
            "transformer.layers.*.attention.out_proj": "layers.*.attention.projection",
            "transformer.layers.*.feed_forward.0": "layers.*.mlp_norm",
            "transformer.layers.*.feed_forward.1": "layers.*.mlp.0",
            "transformer.layers.*.feed_forward.4": "layers.*.mlp.2",
            "transformer.norm": "norm",
            "head": "classifier",
            "head.linear": "classifier",
        },
        signatures=(("image_to_embeddings.1.token", "transformer.layers.0.attention.in_proj_weight"),),
        facts=multihead_facts,
        default_transform=PreprocessingRule.convention(
            HALVES, "vitviz: this layout has no preprocessing of its own", fit="squash"
        ),
    ),
    Family(
        name="sequential",
        title="einops ViT as nn.Sequential",
        names={
            "0.projection.0": "patch_embedding",
            "0.cls_token": "prefix_tokens.cls",
            "0.positions": "positions",
            "1.*.0.fn.0": "layers.*.attention_norm",
            "1.*.0.fn.1.qkv": "layers.*.attention.qkv",
            "1.*.0.fn.1.queries": "layers.*.attention.qkv.query",
            "1.*.0.fn.1.keys": "layers.*.attention.qkv.key",
            "1.*.0.fn.1.values": "layers.*.attention.qkv.value",
            "1.*.0.fn.1.projection": "layers.*.attention.projection",
            "1.*.1.fn.0": "layers.*.mlp_norm",
            "1.*.1.fn.1.0": "layers.*.mlp.0",
            "1.*.1.fn.1.3": "layers.*.mlp.2",
            "2.1": "norm",
            "2.2": "classifier",
        },
        signatures=(("0.positions", "1.0.0.fn.1.projection.weight", "2.2.weight"),),
        facts=sequential_facts,
        default_transform=PreprocessingRule.convention(
            HALVES, "vitviz: this layout has no preprocessing of its own", fit="squash"
        ),
        convert=convert_sequential,
    ),
)

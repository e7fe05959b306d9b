"""The layouts in which Meta published DINO and DINOv2: timm's keys, with facts of their own."""

from __future__ import annotations

from functools import partial
from typing import Any

from vitviz.weights.conversion.canonical import Family, MatchedCheckpoint, OpenFact, Published
from vitviz.weights.families import timm
from vitviz.weights.families.published import by_shape, width
from vitviz.weights.metadata.normalisations import IMAGENET
from vitviz.weights.metadata.rules import PreprocessingRule

TRAINING = "used in self-supervised training only"

DINO_NAMES = {key: name for key, name in timm.NAMES.items() if not key.startswith("head")}
DINOV2_NAMES = {
    **{key: name for key, name in DINO_NAMES.items() if key != "reg_token"},
    "register_tokens": "prefix_tokens.registers",
    "blocks.*.mlp.w12": "layers.*.mlp.0",
    "blocks.*.mlp.w3": "layers.*.mlp.2",
    "linear_head": "classifier",
}
# DINOv2's option block_chunks, for FSDP, puts the number of a chunk before that of the layer.
DINOV2_NAMES |= {
    key.replace("blocks.*.", "blocks.?.*."): name for key, name in DINOV2_NAMES.items() if key.startswith("blocks.")
}


def dino_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    fixed = {"norm_epsilon": 1e-6, "activation": "gelu", "position_rule": "bicubic offset", "pooling": "cls"}
    # timm writes the same keys for models that may differ in all of these.
    may_be_timm = not _is_training_run(checkpoint.prefix, checkpoint.group)
    return {
        "heads": OpenFact(),
        **({fact: OpenFact(usual=value) for fact, value in fixed.items()} if may_be_timm else fixed),
    }


def dinov2_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    inputs = checkpoint.shape("classifier.weight")[1:]
    gated = checkpoint.keys.get("layers.0.mlp.0.weight", "").endswith("w12.weight")
    return {
        "heads": OpenFact(),
        "norm_epsilon": 1e-6,
        "activation": "silu" if gated else "gelu",
        "position_rule": "bicubic antialiased" if checkpoint.has("prefix_tokens.registers") else "bicubic offset",
        "positioned": (1,),
        # A classifier may read the CLS token and the mean of the patches.
        "pooling": "cls and mean" if inputs == (2 * width(checkpoint),) else "cls",
    }


def _published(checkpoint: MatchedCheckpoint) -> Published:
    """DINO's own models of these shapes; else timm's, with timm's way to resize positions."""
    rule = {"position_rule": "bicubic antialiased"}
    return by_shape("DINO", checkpoint) or {name: {**row, **rule} for name, row in timm.published(checkpoint).items()}


def _is_training_run(prefix: str, group: str) -> bool:
    return bool({"teacher", "student"} & {group, *prefix.split(".")})


def _is_dino(checkpoint: MatchedCheckpoint) -> bool:
    """Whether this is a file of DINO, not of timm, which writes the same keys: without classifier and configuration."""
    keys = checkpoint.encoder.keys()
    if checkpoint.config or "fc_norm.weight" in keys:
        return False
    # DINO's files have heads for training only; any other head is a classifier.
    if any(key.startswith("head.") and not key.startswith(("head.mlp.", "head.last_layer.")) for key in keys):
        return False
    is_training_run = _is_training_run(checkpoint.prefix, checkpoint.group)
    # Inside a larger module it is timm's, and that module may have the classifier.
    is_top_level = checkpoint.group == "" and set(checkpoint.prefix.split(".")) <= {"", "module", "_orig_mod"}
    is_own_file = is_top_level and not any(key.startswith("decoder_") for key in keys)
    return is_training_run or is_own_file


FAMILIES = (
    Family(
        name="dinov2",
        title="DINOv2, its own layout",
        names=DINOV2_NAMES,
        signatures=(
            ("patch_embed.proj.weight", "mask_token", "pos_embed", "blocks.0.attn.qkv.weight", "blocks.0.ls1.gamma"),
            ("patch_embed.proj.weight", "mask_token", "pos_embed", "blocks.0.0.attn.qkv.weight"),
        ),
        excluded_keys=("decoder_embed.weight",),
        facts=dinov2_facts,
        published=partial(by_shape, "DINOv2"),
        default_transform=PreprocessingRule.convention(IMAGENET, "DINOv2's evaluation"),
        ignored={"mask_token": TRAINING},
        outside={"dino_head.*": TRAINING, "ibot_head.*": TRAINING},
    ),
    Family(
        name="dino",
        title="DINO, its own layout",
        names=DINO_NAMES,
        signatures=(("patch_embed.proj.weight", "cls_token", "pos_embed", "blocks.0.attn.qkv.weight", "norm.weight"),),
        excluded_keys=(
            "mask_token",
            "reg_token",
            "norm_pre.weight",
            "dist_token",
            "blocks.0.ls1.gamma",
            "blocks.0.gamma_1",
        ),
        accepts=_is_dino,
        facts=dino_facts,
        published=_published,
        architectures=timm.fitting_architectures,
        default_transform=PreprocessingRule.convention(IMAGENET, "DINO's evaluation"),
        # ``head.weight`` is not among these: it is a classifier.
        outside={"head.mlp.*": TRAINING, "head.last_layer.*": TRAINING},
    ),
)

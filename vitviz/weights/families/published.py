"""Facts about published checkpoints that their files do not state, looked up by shapes.

A checkpoint matches a published one only if all of these shapes agree, that of the classifier included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitviz.weights.conversion.canonical import MatchedCheckpoint, PublishedCheckpoint
from vitviz.weights.families.conventions import width


@dataclass(frozen=True)
class Shapes:
    """A published checkpoint.

    Args:
        name: its common name.
        width: features of a token.
        depth: encoder layers.
        heads: attention heads of a layer.
        patch: side of a patch in pixels.
        grid: patches along a side of the trained grid; 0 for rotary positions.
        classes: numbers of classes of its published classifiers, 0 for one without.
        facts: what else its file does not state.
        gated: whether its MLP is gated; None if the other shapes determine it.
        pre_norm: whether it has a norm before its layers; None if the other shapes determine it.
    """

    name: str
    width: int
    depth: int
    heads: int
    patch: int
    grid: int
    classes: tuple[int, ...] = (0,)
    facts: dict[str, Any] = field(default_factory=dict)
    gated: bool | None = None
    pre_norm: bool | None = None

    def match(self, checkpoint: MatchedCheckpoint) -> bool:
        """Whether a checkpoint has these shapes."""
        classes, embedding = checkpoint.shape("classifier.weight")[:1], checkpoint.shape("patch.weight")
        positions = checkpoint.shape("positions")[-2:-1]
        prefix = sum(checkpoint.has(token) for token in ("cls", "distillation"))
        if len(embedding) == 2:
            # A matrix for square patches of three channels.
            embedding = (math.isqrt(embedding[1] // 3),) * 2
        gated = (
            checkpoint.has("gate.weight")
            or checkpoint.shape("mlp_in.weight")[:1] != checkpoint.shape("mlp_out.weight")[1:]
        )
        if self.gated not in (None, gated) or self.pre_norm not in (None, checkpoint.has("pre_norm.weight")):
            return False
        return (
            (width(checkpoint), checkpoint.depth) == (self.width, self.depth)
            and embedding[-1:] == (self.patch,)
            and embedding[-2:-1] == (self.patch,)
            and (classes or (0,))[0] in self.classes
            and (positions or (0,))[0] in {self.grid**2, self.grid**2 + prefix}
        )


def by_shape(rows: Sequence[Shapes]) -> Callable[[MatchedCheckpoint], list[PublishedCheckpoint]]:
    """A function that returns the rows which match a checkpoint, as published checkpoints."""

    def published(checkpoint: MatchedCheckpoint) -> list[PublishedCheckpoint]:
        return [
            PublishedCheckpoint(row.name, {"heads": row.heads, **row.facts}) for row in rows if row.match(checkpoint)
        ]

    return published


TORCHVISION = (
    Shapes("vit_b_16", 768, 12, 12, 16, 14, (1000,)),
    Shapes("vit_b_16 (SWAG)", 768, 12, 12, 16, 24, (1000,)),
    Shapes("vit_b_32", 768, 12, 12, 32, 7, (1000,)),
    Shapes("vit_l_16", 1024, 24, 16, 16, 14, (1000,)),
    Shapes("vit_l_16 (SWAG)", 1024, 24, 16, 16, 32, (1000,)),
    Shapes("vit_l_32", 1024, 24, 16, 32, 7, (1000,)),
    Shapes("vit_h_14 (SWAG)", 1280, 32, 16, 14, 37, (1000,)),
    Shapes("vit_h_14 (SWAG, linear)", 1280, 32, 16, 14, 16, (1000,)),
)
GOOGLE = tuple(
    Shapes(f"{name} ({patch * grid} pixels)", width, depth, heads, patch, grid, (1000, 21843))
    for name, width, depth, heads, patch in (
        *(("ViT-B_16", 768, 12, 12, 16), ("ViT-B_32", 768, 12, 12, 32)),
        *(("ViT-L_16", 1024, 24, 16, 16), ("ViT-L_32", 1024, 24, 16, 32), ("ViT-H_14", 1280, 32, 16, 14)),
    )
    for grid in (224 // patch, 384 // patch)
)
"""Google's first checkpoints, which ports to torch carry over."""
_MMPRETRAIN_FACTS = {"norm_epsilon": 1e-6, "activation": "gelu", "pooling": "cls"}
MMPRETRAIN = tuple(
    Shapes(name, width, depth, heads, patch, grid, (0, 1000), _MMPRETRAIN_FACTS, pre_norm=False)
    for name, width, depth, heads, patch, grid in (
        *(("vit-base-p32", 768, 12, 12, 32, 12), ("vit-base-p16", 768, 12, 12, 16, 14)),
        *(("vit-base-p16 (384 pixels)", 768, 12, 12, 16, 24), ("vit-large-p16", 1024, 24, 16, 16, 14)),
        *(("vit-large-p16 (384 pixels)", 1024, 24, 16, 16, 24), ("vit-huge-p14", 1280, 32, 16, 14, 16)),
        *(("deit-tiny", 192, 12, 3, 16, 14), ("deit-small", 384, 12, 6, 16, 14)),
        ("mocov3-vit-small-p16", 384, 12, 12, 16, 14),
    )
)
DINO_FACTS = {"norm_epsilon": 1e-6, "activation": "gelu", "position_rule": "bicubic offset", "pooling": "cls"}
DINO = (
    Shapes("dino_vits16", 384, 12, 6, 16, 14, facts=DINO_FACTS),
    Shapes("dino_vits8", 384, 12, 6, 8, 28, facts=DINO_FACTS),
    Shapes("dino_vitb16", 768, 12, 12, 16, 14, facts=DINO_FACTS),
    Shapes("dino_vitb8", 768, 12, 12, 8, 28, facts=DINO_FACTS),
)
DINOV2 = (
    Shapes("dinov2_vits14", 384, 12, 6, 14, 37, (0, 1000)),
    Shapes("dinov2_vitb14", 768, 12, 12, 14, 37, (0, 1000)),
    Shapes("dinov2_vitl14", 1024, 24, 16, 14, 37, (0, 1000)),
    Shapes("dinov2_vitg14", 1536, 40, 24, 14, 37, (0, 1000)),
)
DINOV3 = (
    Shapes("dinov3_vits16", 384, 12, 6, 16, 0),
    Shapes("dinov3_vits16plus", 384, 12, 6, 16, 0),
    Shapes("dinov3_vitb16", 768, 12, 12, 16, 0),
    Shapes("dinov3_vitl16", 1024, 24, 16, 16, 0),
    Shapes("dinov3_vith16plus", 1280, 32, 20, 16, 0),
    Shapes("dinov3_vit7b16", 4096, 40, 32, 16, 0, (0, 1000)),
)


def _clip(name: str, width: int, depth: int, heads: int, patch: int, grid: int, *activations: str) -> list[Shapes]:
    """A tower of CLIP, one row for each activation that weights were trained with."""
    facts = {"pooling": "cls", "final_norm": "before pooling", "norm_epsilon": 1e-5}
    return [
        Shapes(
            f"{name} ({activation})",
            *(width, depth, heads, patch, grid),
            facts={**facts, "activation": activation},
            pre_norm=True,
        )
        for activation in activations
    ]


def _clipa(name: str, width: int, depth: int, patch: int, grid: int) -> Shapes:
    """A tower of CLIPA (Li et al. 2023), which has no norm before its layers and pools the patches."""
    facts = {"pooling": "mean", "final_norm": "after pooling", "norm_epsilon": 1e-5, "activation": "gelu"}
    return Shapes(name, width, depth, 16, patch, grid, facts=facts, pre_norm=False)


OPEN_CLIP = (
    *_clip("ViT-B-32", 768, 12, 12, 32, 7, "gelu", "quick gelu"),
    *_clip("ViT-B-32-256", 768, 12, 12, 32, 8, "gelu"),
    *_clip("ViT-B-16", 768, 12, 12, 16, 14, "gelu", "quick gelu"),
    *_clip("ViT-B-16-plus-240", 896, 12, 14, 16, 15, "gelu"),
    *_clip("ViT-L-14", 1024, 24, 16, 14, 16, "gelu", "quick gelu"),
    *_clip("ViT-L-14-336", 1024, 24, 16, 14, 24, "gelu", "quick gelu"),
    *_clip("ViT-H-14", 1280, 32, 16, 14, 16, "gelu", "quick gelu"),
    *_clip("ViT-H-14-378", 1280, 32, 16, 14, 27, "gelu", "quick gelu"),
    *_clip("ViT-g-14", 1408, 40, 16, 14, 16, "gelu"),
    *_clip("ViT-bigG-14", 1664, 48, 16, 14, 16, "gelu", "quick gelu"),
    _clipa("ViT-L-14-CLIPA", 1024, 24, 14, 16),
    _clipa("ViT-L-14-CLIPA-336", 1024, 24, 14, 24),
    _clipa("ViT-H-14-CLIPA", 1280, 32, 14, 16),
    _clipa("ViT-H-14-CLIPA-336", 1280, 32, 14, 24),
    _clipa("ViT-bigG-14-CLIPA", 1664, 48, 14, 16),
    _clipa("ViT-bigG-14-CLIPA-336", 1664, 48, 14, 24),
)

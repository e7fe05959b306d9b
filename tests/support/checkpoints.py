"""Small state dicts that need no package."""

from __future__ import annotations

import torch

State = dict[str, torch.Tensor]


def timm_state(
    depth: int = 2, classes: int | None = 7, width: int = 192, positions: int = 17, hidden: int = 48, seed: int = 0
) -> State:
    """Random weights as timm, DeiT, MAE and DINO write them: patches of 8 pixels, one CLS token."""
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, positions, width),
        "patch_embed.proj.weight": (width, 3, 8, 8),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    for layer in range(depth):
        for name, shape in {
            **{f"norm{number}.{kind}": (width,) for number in (1, 2) for kind in ("weight", "bias")},
            **{"attn.qkv.weight": (3 * width, width), "attn.qkv.bias": (3 * width,)},
            **{"attn.proj.weight": (width, width), "attn.proj.bias": (width,)},
            **{"mlp.fc1.weight": (hidden, width), "mlp.fc1.bias": (hidden,)},
            **{"mlp.fc2.weight": (width, hidden), "mlp.fc2.bias": (width,)},
        }.items():
            shapes[f"blocks.{layer}.{name}"] = shape
    if classes is not None:
        shapes |= {"head.weight": (classes, width), "head.bias": (classes,)}
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * 0.1 for name, shape in shapes.items()}

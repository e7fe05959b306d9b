"""Patch dropout: in every step a network sees some patches of each image only, drawn by chance.

Liu et al. 2023, "PatchDropout: Economizing Vision Transformers Using Patch Dropout". A step costs as much as one with
smaller images, while the patches have the size that they have in use.
"""

from __future__ import annotations

import torch
from einops import repeat

from vitviz.models.vit import VisionTransformer


def forward_some(network: VisionTransformer, pixels: torch.Tensor, count: int, random: torch.Generator) -> torch.Tensor:
    """Pooled features ``"batch feature"`` of images of which the network sees ``count`` patches each.

    An image of no more patches is seen whole. Prefix tokens stay, and every patch keeps its position.

    Args:
        network: a network with learned positions.
        pixels: ``"batch channel height width"``, normalised as the network expects.
        count: number of patches.
        random: draws them, without repetition; not used for images that are seen whole.
    """
    tokens, layout = network.embed(pixels)
    if count < layout.patch_count:
        drawn = torch.rand(len(pixels), layout.patch_count, generator=random).argsort(1)[:, :count].sort(1).values
        prefix = repeat(torch.arange(layout.prefix_count), "prefix -> batch prefix", batch=len(pixels))
        kept = torch.cat([prefix, layout.prefix_count + drawn], 1).to(tokens.device)
        tokens = tokens.gather(1, repeat(kept, "batch token -> batch token width", width=tokens.shape[-1]))
    for layer, outputs in network.steps(layout):
        tokens = layer(tokens, None, outputs)
    return network.read(tokens, layout, "features")

"""The outputs of vitviz's own network without some of its heads, or some patches of the picture."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import torch
from einops import rearrange, repeat

from vitviz.models.pooling import Output
from vitviz.models.targets import EffectScore
from vitviz.progress import Progress

if TYPE_CHECKING:
    from vitviz.models.vit import VisionTransformer


def without(
    network: VisionTransformer,
    pixels: torch.Tensor,
    head_mask: torch.Tensor | None = None,
    patches: Sequence[Collection[int]] = ((),),
    output: Output = "logits",
) -> torch.Tensor:
    """The output of an image without heads and each set of patches, whose tokens are left out.

    Args:
        network: in evaluation mode.
        pixels: ``"1 channel height width"``.
        head_mask: ``"layer head"``, factor of each head's output; None for all heads.
        patches: numbers of patches, row by row; as many in each set.
        output: as in :meth:`vitviz.VisionTransformer.read`.

    Returns:
        A row for each set.
    """
    with torch.inference_mode():
        tokens, layout = network.embed(pixels.to(network.device))
        prefix, tokens_in_order = layout.prefix_count, range(layout.token_count)
        remaining = [[token for token in tokens_in_order if token - prefix not in hidden] for hidden in patches]
        indices = torch.tensor(remaining, device=tokens.device)
        angles = network.angles(layout)
        if angles is not None:
            angles = angles[indices[:, None, layout.prefix_count :] - layout.prefix_count]
        tokens = tokens[0, indices]
        for number, (layer, count) in enumerate(network.steps(layout, output)):
            mask = None if head_mask is None else head_mask[number]
            tokens = layer(tokens, angles, min(count, indices.shape[1]), mask)
        return network.read(tokens, layout, output)


def head_scores(
    network: VisionTransformer,
    pixels: torch.Tensor,
    score: EffectScore,
    report: Callable[[Progress], None] | None = None,
) -> tuple[float, torch.Tensor]:
    """The score with all heads, and without each in turn, ``"layer head"``.

    The layers below do not depend on a layer's heads and are computed once; above it, all of a layer's heads form one
    batch. This takes half the work of a forward pass per head.
    """
    config = network.config
    scores = torch.zeros(config.depth, config.heads, dtype=torch.float32)
    masks = rearrange(
        1 - torch.eye(config.heads, dtype=torch.float32, device=network.device), "batch head -> batch head 1 1"
    )
    with torch.inference_mode():
        tokens, layout = network.embed(pixels.to(network.device))
        angles, steps = network.angles(layout), network.steps(layout, score.reads)
        for number, (layer, count) in enumerate(steps):
            context = layer.attend(tokens, angles, count).context
            ablated = repeat(tokens, "1 token width -> batch token width", batch=config.heads)
            ablated = layer.residual_mlp(ablated, context * masks.to(context.dtype))
            for above, queries in steps[number + 1 :]:
                ablated = above(ablated, angles, queries)
            tokens = layer.residual_mlp(tokens, context)
            scores[number] = score.scores(network.read(ablated, layout, score.reads)).cpu()
            if report is not None:
                report(Progress((number + 1) * config.heads, scores.numel()))
        whole = float(score.scores(network.read(tokens, layout, score.reads)))
    return whole, scores

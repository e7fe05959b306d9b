"""The gradient of a score as the attention to each patch weakens, while some patches are covered."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import torch

from vitviz.attention.precision import plain_torch
from vitviz.attention.softmax import attend
from vitviz.models.autograd import arriving_gradients
from vitviz.models.layers import AttentionOutput

if TYPE_CHECKING:
    from vitviz.models.vit import VisionTransformer


@plain_torch()
def attention_gradients(
    network: VisionTransformer,
    pixels: torch.Tensor,
    covered: Collection[int],
    score: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """The gradient of a score with respect to a number added to the attention scores of each patch in every layer.

    At 0 it is the patch as it is, at minus infinity a patch that is covered.

    Args:
        network: in evaluation mode.
        pixels: ``"1 channel height width"``, normalised as the checkpoint was trained.
        covered: numbers of patches, row by row, that no token attends to.
        score: from the logits ``"1 class"`` to a number.

    Returns:
        ``"patch"``, row by row; 0 for those that are covered.
    """
    with torch.inference_mode(False), arriving_gradients(network):
        with torch.no_grad():
            # A copy, since tensors from inference mode cannot be differentiated.
            tokens, layout = network.embed(pixels.to(network.device).clone())
            hidden = {layout.prefix_count + patch for patch in covered}
            remaining = torch.tensor([token for token in range(layout.token_count) if token not in hidden])
            tokens, angles = tokens[:, remaining], network.angles(layout)
            if angles is not None:
                angles = angles[remaining[layout.prefix_count :] - layout.prefix_count]
        with torch.enable_grad():
            bias = torch.zeros(layout.token_count, device=tokens.device, requires_grad=True)
            for layer, count in network.steps(layout):
                attention = layer.attend(tokens, angles, min(count, len(remaining)))
                context = _context(attention, bias[remaining], network.scale)
                tokens = layer.residual_mlp(tokens, context)
            [gradient] = torch.autograd.grad(score(network.read(tokens, layout)), bias)
    return gradient[layout.prefix_count :].cpu()


def _context(attention: AttentionOutput, bias: torch.Tensor, scale: float) -> torch.Tensor:
    """The context with a bias of each key, by one more feature of queries and keys, as the fused kernel takes it."""
    queries, keys, values = attention.queries[:, :, : attention.context.shape[2]], attention.keys, attention.values
    column = bias.to(keys)[:, None].expand(*keys.shape[:-1], 1)
    queries = torch.cat([queries, torch.full_like(queries[..., :1], 1 / scale)], -1)
    values = torch.cat([values, torch.zeros_like(values[..., :1])], -1)
    return attend(queries, torch.cat([keys, column], -1), values, scale)[0][..., :-1]

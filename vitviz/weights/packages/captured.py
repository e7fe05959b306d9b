"""Output and attention of a captured network and of the model of its package, for the same pixels."""

from __future__ import annotations

import torch
from einops import rearrange

from vitviz.errors.kinds import CheckpointError
from vitviz.models.capture.network import CapturedNetwork
from vitviz.weights.packages.reference import Answer

Pairs = tuple[tuple[torch.Tensor, torch.Tensor], ...]


def captured_output(
    network: CapturedNetwork, pixels: torch.Tensor, answer: Answer
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output of the captured network, and that of the package's model.

    Raises:
        CheckpointError: the package's model gives nothing to compare.
    """
    expected = answer.tokens if answer.output is None else answer.output
    if expected is None:
        raise CheckpointError("the package's model gives neither an output nor tokens to compare")
    return network.returned(pixels), expected


def captured_attention(network: CapturedNetwork, pixels: torch.Tensor, answer: Answer) -> Pairs:
    """For each layer, the attention in the trace and that of the package, ``"image window head query key"``.

    Empty if the package returns no attention, or attention among other tokens.

    Args:
        network: of the module.
        pixels: ``"image channel height width"``.
        answer: of the package, with matrices of all calls of attention, or of the layers only.
    """
    verified, matrices = network.verified(pixels[:1]), answer.attention
    if len(matrices) == len(verified.shapes):
        matrices = tuple(matrices[call] for call in verified.calls)
    if len(matrices) != verified.structure.depth or verified.is_padded:
        return ()
    traces, pairs = network.encode(pixels).traces, []
    for layer, (places, theirs) in enumerate(zip(verified.places, matrices, strict=True)):
        ours = torch.stack([trace.weights(layer) for trace in traces])
        images, heads, tokens = ours.shape[:3]
        keys = theirs.shape[-1]
        theirs = theirs.transpose(1, 2) if places.has_heads_first else theirs
        if places.windows * keys != tokens or theirs.numel() != images * heads * tokens * keys:
            return ()
        token = torch.empty(tokens, dtype=torch.long)
        token[places.index] = torch.arange(tokens)
        window = rearrange(token, "(window place) -> window place", window=places.windows)
        ours = ours[:, :, window[:, :, None], window[:, None, :]]
        theirs = theirs.reshape(images, places.windows, heads, keys, keys)
        pairs.append((rearrange(ours, "image head window q k -> image window head q k"), theirs))
    return tuple(pairs)

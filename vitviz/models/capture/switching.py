"""A captured module's output without some of its heads, or some patches of the picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from einops import rearrange

from vitviz.attention.precision import precise
from vitviz.errors.kinds import MethodError
from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.verification import VerifiedCapture
from vitviz.models.pooling import Output
from vitviz.models.targets import EffectScore
from vitviz.progress import Progress

if TYPE_CHECKING:
    from vitviz.models.capture.network import CapturedNetwork

# The most by which changed colours of hidden patches may change the output, relative to the larger of 1 and its largest
# number.
OUTPUT_TOLERANCE = 1e-5


@dataclass
class _Ablation:
    """Replaces each call's output by that without the heads that are off and the hidden keys."""

    verified: VerifiedCapture
    head_mask: torch.Tensor
    hidden: Collection[int]

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        order, layer = self.verified.order, self.verified.layer_of(call.number)
        mask = None if layer is None else self.head_mask[layer]
        mask = None if mask is None or bool(mask.all()) else mask
        if not self.hidden:
            if layer is None or mask is None:
                return call.output
            return self.verified.places[layer].by_window(call).ablated_output(mask, None)
        # A pooling may read the patches only.
        offset = 0 if call.key_count > order.patches else order.extra
        key_bias = torch.zeros(call.key_count, dtype=torch.float32, device=call.keys.device)
        tokens = torch.tensor(list(self.hidden))
        key_bias[tokens - offset if offset else order.index[tokens]] = -math.inf
        return call.ablated_output(mask, key_bias)


def captured_without(
    network: CapturedNetwork,
    pixels: torch.Tensor,
    head_mask: torch.Tensor | None = None,
    patches: Sequence[Collection[int]] = ((),),
    output: Output = "logits",
) -> torch.Tensor:
    """A module's output for an image without some heads and each set of patches, in one forward pass for each set.

    Args:
        network: the captured module.
        pixels: ``"1 channel height width"``.
        head_mask: ``"layer head"``, factor of each head's output; None for all heads.
        patches: numbers of patches, row by row, to which no token attends, as if their scores were minus infinity.
        output: as in :meth:`CapturedNetwork.output`.

    Returns:
        A row for each set.

    Raises:
        MethodError: the module does not expose this output, or also reads hidden patches outside attention.
    """
    mask, prefix = _all_heads(network) if head_mask is None else head_mask, len(network.config.prefix)
    sets = [{prefix + patch for patch in hidden} for hidden in patches]
    return torch.cat([_output_without(network, pixels, mask, hidden, output) for hidden in sets])


def captured_head_scores(
    network: CapturedNetwork,
    pixels: torch.Tensor,
    score: EffectScore,
    report: Callable[[Progress], None] | None = None,
) -> tuple[float, torch.Tensor]:
    """The score with all heads, and without each in turn, ``"layer head"``: one forward pass for each head."""

    def value(mask: torch.Tensor) -> float:
        return float(score.scores(_output_without(network, pixels, mask, (), score.reads)))

    scores = torch.zeros(network.config.depth, network.config.heads, dtype=torch.float32)
    for layer in range(len(scores)):
        for head in range(network.config.heads):
            mask = _all_heads(network)
            mask[layer, head] = 0
            scores[layer, head] = value(mask)
        if report is not None:
            report(Progress((layer + 1) * network.config.heads, scores.numel()))
    return value(_all_heads(network)), scores


def _all_heads(network: CapturedNetwork) -> torch.Tensor:
    return torch.ones(network.config.depth, network.config.heads, dtype=torch.float32, device=network.device)


def _output_without(
    network: CapturedNetwork, pixels: torch.Tensor, head_mask: torch.Tensor, hidden: Collection[int], output: Output
) -> torch.Tensor:
    verified = network.verified(pixels)
    if hidden and not verified.is_global:
        raise MethodError(
            f"{network.name}: patches can be hidden only if every layer attends globally, to one grid of patches in "
            "reading order"
        )
    with network.running(pixels) as inputs:

        def run(image: torch.Tensor) -> torch.Tensor:
            return network.output_of(image, output, _Ablation(verified, head_mask, hidden))

        ablated = run(inputs)
        if not hidden:
            return ablated
        config, layout = network.config, network.config.layout(*pixels.shape[-2:])
        mask = torch.zeros(layout.token_count, dtype=torch.bool)
        mask[list(hidden)] = True
        cells = layout.grid(mask).repeat_interleave(config.patch_height, 0).repeat_interleave(config.patch_width, 1)
        changed = run(
            torch.where(rearrange(cells, "height width -> 1 1 height width").to(inputs.device), -inputs, inputs)
        )
    difference = float((precise(changed) - precise(ablated)).abs().max())
    if not difference <= OUTPUT_TOLERANCE * max(1.0, float(precise(ablated).abs().max())):
        raise MethodError(
            f"{network.name}: hidden patches change its output by {difference:.2g}, so it also reads them outside "
            "attention, for example in a mean over patches; expected a model whose patches can be left out"
        )
    return ablated

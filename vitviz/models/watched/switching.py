"""A watched module's output without some of its heads, or some patches of the picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import torch
from einops import rearrange

from vitviz.attention.precision import precise
from vitviz.errors.kinds import MethodError
from vitviz.models.pooling import Output
from vitviz.models.targets import EffectScore
from vitviz.models.watched.calls import AttentionCall
from vitviz.models.watched.program_outputs import replayed, require_hiding
from vitviz.models.watched.replay import OnCall
from vitviz.models.watched.verification import VerifiedModule
from vitviz.progress import Progress

if TYPE_CHECKING:
    from vitviz.models.watched.watched_network import WatchedNetwork

# The most by which changed colours of hidden patches may change the output, relative to the larger of 1 and its largest
# number.
OUTPUT_TOLERANCE = 1e-5


def ablation(
    verified: VerifiedModule,
    head_mask: torch.Tensor | None = None,
    hidden: Collection[int] = (),
    bias: torch.Tensor | None = None,
) -> OnCall:
    """A function that replaces each call's output by that without the heads that are off and the hidden keys.

    Args:
        verified: the verified module.
        head_mask: ``"layer head"``, factor of each head's output; None for all heads.
        hidden: numbers of tokens of the layout, to which no token attends.
        bias: ``"token"``, added to the scores of each token of the layout; None for nothing.
    """

    def key_bias(call: AttentionCall, is_layer: bool) -> torch.Tensor:
        total = len(verified.places[0].index)
        added = bias if is_layer and bias is not None else torch.zeros(total, device=call.keys.device)
        added = added.index_fill(0, torch.tensor([*hidden], dtype=torch.long, device=added.device), -math.inf)
        # A pooling may read the patches only.
        return verified.unsort(added, 0) if call.key_count == total else added[verified.extra :]

    def on_call(call: AttentionCall) -> torch.Tensor:
        layer = verified.layer_of(call.number)
        mask = None if layer is None or head_mask is None or bool(head_mask[layer].all()) else head_mask[layer]
        added = key_bias(call, layer is not None) if hidden or bias is not None else None
        return call.ablated_output(mask, added)

    return on_call


def watched_without(
    network: WatchedNetwork,
    pixels: torch.Tensor,
    head_mask: torch.Tensor | None = None,
    patches: Sequence[Collection[int]] = ((),),
    output: Output = "logits",
) -> torch.Tensor:
    """A module's output for an image without some heads and each set of patches, in one forward pass for each set.

    Args:
        network: the watched module.
        pixels: ``"1 channel height width"``.
        head_mask: ``"layer head"``, factor of each head's output; None for all heads.
        patches: numbers of patches, row by row, to which no token attends, as if their scores were minus infinity.
        output: as in :meth:`WatchedNetwork.output`.

    Returns:
        A row for each set.

    Raises:
        MethodError: the module does not expose this output, or also reads hidden patches outside attention.
    """
    prefix = len(network.config.prefix)
    sets = [{prefix + patch for patch in hidden} for hidden in patches]
    return torch.cat([_output_without(network, pixels, head_mask, hidden, output) for hidden in sets])


def watched_head_scores(
    network: WatchedNetwork,
    pixels: torch.Tensor,
    score: EffectScore,
    report: Callable[[Progress], None] | None = None,
) -> tuple[float, torch.Tensor]:
    """The score with all heads, and without each in turn, ``"layer head"``: one forward pass for each head."""
    shape, scores = (network.config.depth, network.config.heads), list[float]()
    count = math.prod(shape)
    # All heads, and then each one off.
    for number, mask in enumerate(torch.cat([torch.ones(1, count), 1 - torch.eye(count)]).float()):
        scores.append(float(score.scores(_output_without(network, pixels, mask.view(shape), (), score.reads))))
        if report is not None and number:
            report(Progress(number, count))
    return scores[0], torch.tensor(scores[1:], dtype=torch.float32).view(shape)


def _output_without(
    network: WatchedNetwork,
    pixels: torch.Tensor,
    head_mask: torch.Tensor | None,
    hidden: Collection[int],
    output: Output,
) -> torch.Tensor:
    verified = network.verified(pixels)
    if hidden:
        require_hiding(network.name, verified)
    on_call = ablation(verified, head_mask, hidden)
    with network.running(pixels) as inputs:
        ablated = replayed(network, verified, inputs, output, on_call)
        if not hidden:
            return ablated
        config, layout = network.config, network.config.layout(*pixels.shape[-2:])
        mask = torch.zeros(layout.token_count, dtype=torch.bool)
        mask[list(hidden)] = True
        cells = layout.grid(mask).repeat_interleave(config.patch_height, 0).repeat_interleave(config.patch_width, 1)
        repainted = torch.where(rearrange(cells, "height width -> 1 1 height width").to(inputs.device), -inputs, inputs)
        changed = replayed(network, verified, repainted, output, on_call)
    difference = float((precise(changed) - precise(ablated)).abs().max())
    if not difference <= OUTPUT_TOLERANCE * max(1.0, float(precise(ablated).abs().max())):
        raise MethodError(
            f"{network.name}: hidden patches change its output by {difference:.2g}, so it also reads them outside "
            "attention, for example in a mean over patches; expected a model whose patches can be left out"
        )
    return ablated

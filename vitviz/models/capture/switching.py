"""A captured module without some of its heads, and without some patches of the picture."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch
from einops import rearrange

from vitviz.attention.precision import precise
from vitviz.errors.kinds import MethodError
from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.network import CapturedNetwork
from vitviz.models.capture.verification import VerifiedCapture
from vitviz.models.pooling import Output

# What a change of hidden patches may change of the output, as a part of its largest number or of 1.
UNCHANGED = 1e-5


@dataclass
class _Switch:
    """Gives the module each call's output without the heads that are off, and without the hidden keys."""

    verified: VerifiedCapture
    head_mask: torch.Tensor
    hidden: Collection[int]
    number: int = 0

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        number, order = self.number, self.verified.order
        self.number += 1
        layer = self.verified.layer_of(number)
        mask = None if layer is None else self.head_mask[layer]
        mask = None if mask is None or bool(mask.all()) else mask
        if not self.hidden:
            return call.output if layer is None or mask is None else self._without_heads(layer, call, mask)
        # A pooling may read the patches alone.
        first = 0 if call.key_count > order.patches else order.extra
        key_bias = torch.zeros(call.key_count, device=call.keys.device)
        places = [token - first if first else order.place(token) for token in self.hidden]
        key_bias[places] = -math.inf
        return call.switched(mask, key_bias)

    def _without_heads(self, layer: int, call: AttentionCall, mask: torch.Tensor) -> torch.Tensor:
        return self.verified.places[layer].by_window(call).switched(mask, None)


def output_without(
    network: CapturedNetwork,
    pixels: torch.Tensor,
    head_mask: torch.Tensor,
    hidden: Collection[int] = (),
    output: Output = "logits",
) -> torch.Tensor:
    """What a module gives of an image, ``"1 class"``, without some heads and patches.

    Args:
        network: of the module.
        pixels: ``"1 channel height width"``.
        head_mask: ``"layer head"``, what the output of each head is multiplied with.
        hidden: token indices of patches that are no key of any token, as if their scores were minus infinity.
        output: as :meth:`CapturedNetwork.output` takes it.

    Raises:
        MethodError: the module does not say this of itself, or reads hidden patches otherwise than by attention.
    """
    verified = network.verified(pixels)
    if hidden and not verified.is_whole:
        raise MethodError(
            f"{network.name}: patches cannot be hidden from attention inside windows, or of which other grids make "
            "their own; expected the same global attention in every layer"
        )
    with network.running(pixels) as own:

        def run(image: torch.Tensor) -> torch.Tensor:
            return network.output_of(image, output, _Switch(verified, head_mask, hidden))

        found = run(own)
        if not hidden:
            return found
        config, layout = network.config, network.config.layout(*pixels.shape[-2:])
        mask = torch.zeros(layout.token_count, dtype=torch.bool)
        mask[list(hidden)] = True
        cells = layout.grid(mask).repeat_interleave(config.patch_height, 0).repeat_interleave(config.patch_width, 1)
        changed = run(torch.where(rearrange(cells, "height width -> 1 1 height width").to(own.device), -own, own))
    difference = float((precise(changed) - precise(found)).abs().max())
    if not difference <= UNCHANGED * max(1.0, float(precise(found).abs().max())):
        raise MethodError(
            f"{network.name}: hidden patches change its output by {difference:.2g}, so it reads them not by attention "
            "alone, but such as by a mean of all patches; expected a model whose patches can be left out"
        )
    return found

"""The values of a module's attention, which no trace keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from vitviz.models.watched.calls import AttentionCall

if TYPE_CHECKING:
    from vitviz.models.watched.watched_network import WatchedNetwork


def watched_values(network: WatchedNetwork, pixels: torch.Tensor) -> Iterator[torch.Tensor]:
    """As :meth:`vitviz.VisionTransformer.values`, for a watched module."""
    verified, found = network.verified(pixels), dict[int, torch.Tensor]()

    def on_call(call: AttentionCall) -> torch.Tensor:
        found[call.number] = call.values.detach()
        return call.output

    with network.running(pixels) as inputs:
        verified.replay(inputs, on_call)
    return (
        places.sort(found[number], has_pad_values=True)
        for number, places in zip(verified.calls, verified.places, strict=True)
    )

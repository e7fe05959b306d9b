"""A copy of vitviz's own network whose weights may be changed, layer by layer."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from vitviz.models.vit import VisionTransformer


def copy_in_parts(network: VisionTransformer) -> tuple[VisionTransformer, list[list[nn.Parameter]]]:
    """A frozen copy, and its learned parameters from the top down: above the layers, of each layer, below them."""
    # No gradient would pass through a copy from inference mode.
    with torch.inference_mode(False):
        copy = deepcopy(network).eval().requires_grad_(False)
    above = [copy.classifier, copy.projection, copy.representation, copy.pooler, copy.norm]
    parts = [[weights for module in above for weights in module.parameters()]]
    parts += [list(layer.parameters()) for layer in reversed(copy.encoder)]
    known = {id(weights) for part in parts for weights in part}
    below = [weights for name, weights in copy.named_parameters() if name != "periods" and id(weights) not in known]
    return copy, [*parts, below]

"""LeGrad: the gradient of each layer's score with respect to its attention.

Bousselham, Boggust, Chaybouti, Strobelt & Kuehne 2025, "LeGrad: An Explainability Method for Vision Transformers via
Feature Formation Sensitivity", equations 5 to 9.
"""

from __future__ import annotations

import math
from itertools import islice

import torch

from vitviz.attention.layout import layer_range, layer_span
from vitviz.attention.precision import precise
from vitviz.attention.softmax import scores_in_chunks
from vitviz.attention.token_map import TokenMap
from vitviz.attribution.inputs import AttributionInput


def legrad(inputs: AttributionInput, start_layer: int = 0, end_layer: int = -1) -> TokenMap:
    """Where more attention in any layer would raise the score that the classifier computes from that layer's tokens.

    The score ``s_l`` of a layer is that of its output, normalised, pooled and classified like that of the last layer.
    The layer's map is the mean of ``relu(∂s_l/∂A_l)`` over heads and query tokens, and the result the mean over layers.

    Args:
        inputs: image, network and target.
        start_layer: lowest layer to include, from 0, or from the end as ``-1``. The paper takes all layers.
        end_layer: highest layer to include, counted as ``start_layer``.

    Returns:
        Values from 0 up, unbounded; the paper scales them to [0, 1].

    Raises:
        QueryError: the model has no such layer, or the end layer is below the start layer.
    """
    inputs = AttributionInput.checked(inputs)
    network, target = inputs.network, inputs.target
    layers = layer_span(start_layer, end_layer, network.config.depth)
    layout = network.config.layout(*inputs.pixels.shape[-2:])
    sums = list[torch.Tensor]()
    for gradient, values in islice(network.layer_gradients(inputs.pixels, target, layers.start), len(layers)):
        # O = A · V, so the gradient with respect to A is that with respect to O, times Vᵀ.
        for _, chunk in scores_in_chunks(precise(gradient), precise(values), 1.0):
            sums.append(chunk.relu_().sum((0, 1)))
    total = torch.stack(sums).sum(0) / (len(layers) * network.config.heads * layout.token_count)
    description = f"LeGrad for {target.name}: {layer_range(layers.start, layers.stop)}"
    return TokenMap.of_tokens(
        total, layout, "mean gradient of attention", description, (0.0, math.inf), raised=bool(total.any())
    )

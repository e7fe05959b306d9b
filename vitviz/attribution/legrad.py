"""LeGrad: how a score, read from each layer's own tokens, depends on that layer's attention.

Bousselham, Boggust, Chaybouti, Strobelt & Kuehne 2025, "LeGrad: An Explainability Method for Vision Transformers via
Feature Formation Sensitivity", equations 5 to 9.
"""

from __future__ import annotations

import math

import torch

from vitviz.attention.layout import layer_range
from vitviz.attention.precision import precise
from vitviz.attention.softmax import scores_in_chunks
from vitviz.attention.token_map import TokenMap
from vitviz.attribution.inputs import AttributionInput
from vitviz.models.own import own_network


def legrad(inputs: AttributionInput, start_layer: int = 0) -> TokenMap:
    """Where more attention in any layer would raise the score that the classifier gives to that layer's tokens.

    For every layer, ``s_l`` is the score of its output, normalised, pooled and classified as that of the last layer,
    and its map the mean over heads and query tokens of ``relu(∂s_l/∂A_l)``; the map is their mean over the layers.
    One layer at a time is differentiated, from what its attention gives on; memory does not grow with their number.

    Args:
        inputs: image, network and target.
        start_layer: lowest layer that counts, from 0, or from the end as ``-1``. The paper takes all layers.

    Returns:
        Values from 0 up, without a bound; the paper scales them to [0, 1].

    Raises:
        QueryError: the model has no such layer.
    """
    network, target, start_layer = own_network(inputs.network, "legrad"), inputs.target, inputs.layer_index(start_layer)
    depth = network.config.depth
    with torch.inference_mode(False), torch.no_grad():
        tokens, layout = network.embed(inputs.pixels.clone())
        angles, count_read = network.angles(layout), network.tokens_read(layout, target.reads)
        total = precise(tokens).new_zeros(layout.token_count)
        for number, (layer, count) in enumerate(network.steps(layout, target.reads)):
            with network.computing():
                attended = layer.attend(tokens, angles, count)
                if number >= start_layer:
                    with torch.enable_grad():
                        context = attended.context[:, :, :count_read].detach().requires_grad_()
                        output = layer.residual_mlp(tokens, context)
                        score = target.score(network.read(output, layout, target.reads)[0])
                        gradient = torch.autograd.grad(score, context)[0]
                tokens = layer.residual_mlp(tokens, attended.context)
            if number >= start_layer:
                # Attention gives O = A · V, so the gradient with respect to A is that with respect to O, times Vᵀ.
                for _, chunk in scores_in_chunks(precise(gradient[0]), precise(attended.values[0]), 1.0):
                    total += chunk.relu_().sum((0, 1))
    total /= (depth - start_layer) * network.config.heads * layout.token_count
    what = f"LeGrad for {target.name}: {layer_range(start_layer, depth)}"
    return TokenMap.of_tokens(total, layout, "mean gradient of attention", what, (0.0, math.inf))

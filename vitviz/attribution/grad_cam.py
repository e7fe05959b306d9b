"""Grad-CAM on tokens.

Selvaraju et al. 2017, "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization", equations 1
and 2, with the tokens of a layer's first norm in place of a convolution's output.
"""

from __future__ import annotations

import math

import torch

from vitviz.attention.layout import PATCHES, numbered
from vitviz.attention.precision import precise
from vitviz.attention.token_map import TokenMap
from vitviz.attribution.inputs import AttributionInput


def grad_cam(inputs: AttributionInput, layer: int = -1) -> TokenMap:
    """Where the features are strong that raise the score: ``relu(Σ_c w_c x_c)``.

    ``x`` are the patches as a layer's attention takes them, after its norm, and ``w_c`` is the mean of ``∂y/∂x_c`` over
    the patches. Behind the last layer's attention patches do not count where the CLS token is classified, so that
    nothing later than its first norm would do.

    Args:
        inputs: image, network and target.
        layer: counted from 0, or from the end as ``-1``.

    Returns:
        Values from 0 up, without a bound; none for prefix tokens.

    Raises:
        QueryError: the model has no such layer.
        MethodError: the score is as high as it can be.
    """
    network, layer = inputs.network, inputs.layer_index(layer)
    with torch.inference_mode(False):
        with torch.no_grad():
            tokens, layout = network.embed(inputs.pixels.clone())
            angles, steps = network.angles(layout), network.steps(layout, inputs.target.reads)
            for below, count in steps[:layer]:
                with network.computing():
                    tokens = below(tokens, angles, count)
        (encoder_layer, count), *above = steps[layer:]
        with torch.enable_grad(), network.computing():
            normed = encoder_layer.attention_norm(tokens).detach().requires_grad_()
            stream = encoder_layer.residual_mlp(tokens, encoder_layer.attention(normed, angles, count).context)
            for layer_above, count in above:
                stream = layer_above(stream, angles, count)
        with torch.enable_grad():
            score = inputs.target.rising_score(network.read(stream, layout, inputs.target.reads)[0])
            gradient = torch.autograd.grad(score, normed)[0]
    weights = precise(gradient[0, layout.select(PATCHES)]).mean(0)
    strength = (precise(normed[0].detach()) @ weights).relu()
    what = f"Grad-CAM for {inputs.target.name}: {numbered('layer', layer, network.config.depth)}"
    return TokenMap(layout.grid(strength), {}, "activation times gradient", what, (0.0, math.inf))

"""Grad-CAM on tokens.

Selvaraju et al. 2017, "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization", equations 1
and 2, with the tokens of a layer's first norm in place of a convolution's output.
"""

from __future__ import annotations

import math

from vitviz.attention.layout import PATCHES, numbered
from vitviz.attention.token_map import TokenMap
from vitviz.attribution.inputs import AttributionInput
from vitviz.models.gradients import layer_features


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
    layer = inputs.layer_index(layer)
    features, gradient, layout = layer_features(inputs.network, inputs.pixels, inputs.target, layer)
    weights = gradient[layout.select(PATCHES)].mean(0)
    strength = (features @ weights).relu()
    what = f"Grad-CAM for {inputs.target.name}: {numbered('layer', layer, inputs.network.config.depth)}"
    return TokenMap(layout.grid(strength), {}, "activation times gradient", what, (0.0, math.inf))

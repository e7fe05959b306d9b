"""Grad-CAM on tokens.

Selvaraju et al. 2017, "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization", equations 1
and 2, with the tokens of a layer's first norm in place of a convolution's output.
"""

from __future__ import annotations

import math

from vitviz.attention.layout import PATCHES, index_from_end, numbered
from vitviz.attention.token_map import TokenMap
from vitviz.attribution.inputs import AttributionInput


def grad_cam(inputs: AttributionInput, layer: int = -1) -> TokenMap:
    """The strength of the features that raise the score: ``relu(Σ_c w_c x_c)``.

    ``x`` are the patches that enter a layer's attention, after its norm, and ``w_c`` is the mean of ``∂y/∂x_c`` over
    the patches. Later features would not do: if the CLS token is classified, the score does not depend on the patches
    after the last layer's attention.

    Args:
        inputs: image, network and target.
        layer: number of the layer from 0, or from the end as ``-1``.

    Returns:
        Values from 0 up, unbounded; none for prefix tokens.

    Raises:
        QueryError: the model has no such layer.
        MethodError: the score is at its maximum.
    """
    inputs = AttributionInput.checked(inputs)
    layer = index_from_end("layer", layer, inputs.network.config.depth)
    features, gradient, layout = inputs.network.layer_features(inputs.pixels, inputs.target, layer)
    weights = gradient[layout.select(PATCHES)].mean(0)
    strength = (features @ weights).relu()
    description = f"Grad-CAM for {inputs.target.name}: {numbered('layer', layer, inputs.network.config.depth)}"
    domain, raised = (0.0, math.inf), bool(strength.any())
    return TokenMap(layout.grid(strength), {}, "activation times gradient", description, domain, raised=raised)

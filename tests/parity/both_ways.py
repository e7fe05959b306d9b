"""Everything that two networks give of an image is the same."""

from typing import Any

import torch

from vitviz import Model, VitvizError
from vitviz.attribution import METHODS, AttributionInput
from vitviz.metrics.ablation import switched_off
from vitviz.models.targets import class_target

TOLERANCE = 1e-5


def close(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    scale = max(1.0, float(expected.abs().max()))
    assert found.shape == expected.shape, f"{what}: {found.shape}, expected {expected.shape}"
    difference = float((found.double() - expected.double()).abs().max())
    assert difference <= TOLERANCE * scale, f"{what}: {difference:.2g}"


def both_ways(watched: Model, own: Model, pixels: torch.Tensor) -> None:
    """Everything that both networks give of an image."""
    ours, theirs = own.network.encode(pixels), watched.network.encode(pixels)
    if own.network.config.classes:
        close(theirs.logits, ours.logits, "logits")
    one, other = theirs.traces[0], ours.traces[0]
    assert one.layout == other.layout
    patch = one.layout.index((one.layout.grid_height - 1, 0))
    for layer in range(other.layers):
        close(one.weights(layer), other.weights(layer), f"weights of layer {layer}")
        close(one.row(layer, patch), other.row(layer, patch), "row")
        close(one.column(layer, patch), other.column(layer, patch), "column")
    options: list[dict[str, Any]] = [
        {"head_fusion": "max", "residual_weight": 0.3, "start_layer": -1},
        {"head_fusion": "min", "query": patch},
        {"discard_ratio": 0.5},
        {"exclude": [patch]},
        {"exclude": "sinks", "query": "patches"},
        {},
    ]
    if "cls" in one.layout.prefix:
        options.append({"reference": "vit-explain", "discard_ratio": 0.2})
    for option in options:
        maps = [METHODS["rollout"].compute(trace, **option).values for trace in (one, other)]
        close(*maps, f"rollout {option}")
    for layer, values in enumerate(zip(*(each.network.values(pixels) for each in (watched, own)), strict=True)):
        close(*values, f"values of layer {layer}")
    for method in ("attention", "attention_mass", "attention_flow", "value_attention"):
        close(*(METHODS[method].compute(trace).values for trace in (one, other)), method)
    if not own.network.config.classes:
        return
    target = class_target(0, own.network.config.classes)
    inputs = [AttributionInput(model.network, pixels, target) for model in (watched, own)]
    for method in ("gradient_rollout", "relevance"):
        close(*(METHODS[method].compute(each.gradients).values for each in inputs), method)
    for method, layers in (("grad_cam", {"layer": 0}), ("legrad", {})):
        maps = [METHODS[method].compute(each, **layers).values for each in inputs]
        close(*(each / max(1e-6, float(maps[1].abs().max())) for each in maps), method)
    close(*(switched_off(each.network, pixels, [(0, 0)]) for each in inputs), "a head switched off")
    try:
        without = switched_off(watched.network, pixels, patches=[(0, 0)])
    except VitvizError as error:
        assert "hidden patches change its output" in str(error)
    else:
        close(without, switched_off(own.network, pixels, patches=[(0, 0)]), "a patch left out")
        gradients = [
            model.network.attention_gradients(pixels, {1}, lambda logits: logits[0, 0]) for model in (watched, own)
        ]
        largest = max(1e-3, float(gradients[1].abs().max()))
        close(*(each / largest for each in gradients), "attention to each patch")

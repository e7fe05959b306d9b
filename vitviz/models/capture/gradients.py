"""How a score of a captured module changes with its attention, through the module's own autograd."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from vitviz.attention.layout import TokenLayout
from vitviz.attention.precision import precise
from vitviz.errors.kinds import MethodError
from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.network import CapturedNetwork
from vitviz.models.capture.recording import pooling_weights, sorted_bias
from vitviz.models.capture.verification import VerifiedCapture
from vitviz.models.gradient_trace import GradientTrace
from vitviz.models.targets import Target


@dataclass
class _Graph:
    """Keeps the calls from a layer on, with their outputs in the graph of the score.

    What is below the first output is cut off, so that it needs no gradient.
    """

    start_layer: int
    is_cut: bool = True
    number: int = 0
    calls: list[AttentionCall] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        number, output = self.number, call.output
        self.number += 1
        if number < self.start_layer:
            return output.detach() if self.is_cut else output
        if not self.outputs and self.is_cut:
            output = output.detach().requires_grad_()
        self.calls.append(call)
        self.outputs.append(output)
        # A copy: the module may change its own in place.
        return output.clone()


def captured_gradients(
    network: CapturedNetwork, pixels: torch.Tensor, target: Target, start_layer: int
) -> GradientTrace:
    """As :func:`vitviz.models.gradients.trace_gradients`, of a captured module.

    Raises:
        MethodError: the score is as high as it can be, the module's output says nothing of it, or the module computes
            without gradients.
    """
    verified, graph = network.verified(pixels), _Graph(start_layer)
    structure, order = verified.structure, verified.order
    layout = network.config.layout(*pixels.shape[-2:])
    with network.running(pixels, has_gradients=True) as own:
        output = network.output_of(own, target.reads, graph)
        score = target.rising_score(output[0])
        gradients = _gradients(score, graph.outputs)
    count = structure.depth - start_layer
    contexts = [call.context_gradient(gradient) for call, gradient in zip(graph.calls, gradients, strict=True)]
    layers, pooling = graph.calls[:count], graph.calls[count:]
    scale = layers[0].scale
    return GradientTrace(
        tuple(order.sort(call.queries[0].detach(), 1) * (call.scale / scale) for call in layers),
        tuple(order.sort(call.keys[0].detach(), 1) for call in layers),
        tuple(order.sort(call.values[0].detach(), 1) for call in layers),
        tuple(order.sort(gradient[0], 1) for gradient in contexts[:count]),
        (None,) * count,
        scale,
        layout,
        start_layer,
        target,
        float(score.detach()),
        _pooled(pooling[0], contexts[count], verified, layout) if pooling else None,
        tuple(sorted_bias(call, order) for call in layers),
    )


def captured_features(
    network: CapturedNetwork, pixels: torch.Tensor, target: Target, layer: int
) -> tuple[torch.Tensor, torch.Tensor, TokenLayout]:
    """What a layer's attention takes, after its norm, and the score's gradient with respect to it.

    Returns:
        Both ``"token width"``, and which token is what.

    Raises:
        MethodError: as :func:`captured_gradients`, or the module does not project its tokens by a linear map.
    """
    verified, graph = network.verified(pixels), _Graph(0, is_cut=False)
    layout = network.config.layout(*pixels.shape[-2:])
    with network.running(pixels, has_gradients=True) as own:
        output = network.output_of(own.detach().clone().requires_grad_(), target.reads, graph)
        tokens = graph.calls[layer].tokens
        if tokens is None:
            name = network.name
            raise MethodError(f"{name}: layer {layer} projects its tokens by no linear map, whose input they would be")
        gradient = _gradients(target.rising_score(output[0]), [tokens])[0]
    found = (part.detach().flatten(0, -2) for part in (tokens, gradient))
    features, gradient = (verified.order.sort(precise(part), 0) for part in found)
    return features, gradient, layout


def _gradients(score: torch.Tensor, sources: list[torch.Tensor]) -> list[torch.Tensor]:
    if not score.requires_grad or not all(source.requires_grad for source in sources):
        raise MethodError("the module computes without gradients, such as under torch.no_grad: its score has none")
    found = torch.autograd.grad(score, sources, allow_unused=True)
    # A score that is read before a layer's end does not depend on it.
    return [torch.zeros_like(source) if each is None else each for each, source in zip(found, sources, strict=True)]


def _pooled(
    call: AttentionCall, gradient: torch.Tensor, verified: VerifiedCapture, layout: TokenLayout
) -> torch.Tensor:
    """``A ⊙ ∂y/∂A`` of an attention pooling, ``"head token"``, from the gradient of what it gave."""
    weights = pooling_weights(call, verified.order)
    change = (precise(gradient[0]) @ precise(call.values[0].detach()).mT).squeeze(1)
    if change.shape[-1] == verified.order.patches:
        change = F.pad(change, (layout.prefix_count, 0))
    else:
        change = verified.order.sort(change, 1)
    return weights * change

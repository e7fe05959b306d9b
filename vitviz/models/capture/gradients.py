"""Gradients of a captured module's score with respect to its attention, through its own autograd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from vitviz.attention.layout import TokenLayout
from vitviz.attention.precision import precise
from vitviz.errors.kinds import MethodError
from vitviz.models.autograd import NO_GRADIENTS, arriving_gradients
from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.recording import pooling_weights
from vitviz.models.capture.verification import VerifiedCapture
from vitviz.models.gradient_trace import GradientTrace
from vitviz.models.targets import Target

if TYPE_CHECKING:
    from vitviz.models.capture.network import CapturedNetwork


@dataclass
class _GraphRecorder:
    """Records the calls and outputs of the layers from one on, and of the pooling, in the graph of the score.

    With ``is_cut``, the graph starts at the first output, so that nothing below it needs a gradient.
    """

    verified: VerifiedCapture
    start_layer: int
    is_cut: bool = True
    calls: list[AttentionCall] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        number, output = call.number, call.output
        layer = self.verified.layer_of(number)
        if number < self.verified.calls[self.start_layer]:
            return output.detach() if self.is_cut else output
        if layer is None and not self.verified.is_pooling(number):
            return output
        if not self.outputs and self.is_cut:
            output = output.detach().requires_grad_()
        self.calls.append(call)
        self.outputs.append(output)
        self.numbers.append(number)
        # A copy, since the module may change its output in place.
        return output.clone()


def captured_gradients(
    network: CapturedNetwork, pixels: torch.Tensor, target: Target, start_layer: int
) -> GradientTrace:
    """As :func:`vitviz.models.gradients.trace_gradients`, for a captured module.

    Raises:
        MethodError: the score is at its maximum, the module does not return what it reads, or the module computes
            without gradients.
    """
    verified = network.verified(pixels)
    recorder = _GraphRecorder(verified, start_layer)
    layout = network.config.layout(*pixels.shape[-2:])
    with network.running(pixels, has_gradients=True) as inputs, arriving_gradients(network):
        output = network.output_of(inputs, target.reads, recorder)
        score = target.score_below_maximum(output[0])
        found = score_gradients(score, recorder.outputs)
        sources = dict(zip(recorder.numbers, recorder.outputs, strict=True))
        gradients = zeros_without_effect(network, verified, inputs, target, sources, found)
    count = len(verified.calls) - start_layer
    places = verified.places[start_layer:]
    layers = [place.by_window(call) for place, call in zip(places, recorder.calls[:count], strict=True)]
    contexts = [call.context_gradient(gradient) for call, gradient in zip(layers, gradients[:count], strict=True)]
    pooling = recorder.calls[count:]
    scale = layers[0].scale
    ordered = list(zip(places, layers, strict=True))
    return GradientTrace(
        tuple(place.sort(call.queries.detach()) * (call.scale / scale) for place, call in ordered),
        tuple(place.sort(call.keys.detach()) for place, call in ordered),
        tuple(place.sort(call.values.detach(), has_pad_values=True) for place, call in ordered),
        tuple(place.sort(gradient) for place, gradient in zip(places, contexts, strict=True)),
        (None,) * count,
        scale,
        layout,
        start_layer,
        target,
        float(score.detach()),
        _pooled(pooling[0], pooling[0].context_gradient(gradients[count]), verified, layout) if pooling else None,
        tuple(place.bias(call) for place, call in ordered),
    )


def captured_features(
    network: CapturedNetwork, pixels: torch.Tensor, target: Target, layer: int
) -> tuple[torch.Tensor, torch.Tensor, TokenLayout]:
    """The input of a layer's attention, after its norm, and the score's gradient with respect to it.

    Returns:
        Both ``"token width"``, and the order of the tokens.

    Raises:
        MethodError: as :func:`captured_gradients`, or no linear projection to queries, keys and values was found.
    """
    verified = network.verified(pixels)
    recorder = _GraphRecorder(verified, 0, is_cut=False)
    layout = network.config.layout(*pixels.shape[-2:])
    with network.running(pixels, has_gradients=True) as inputs, arriving_gradients(network):
        output = network.output_of(inputs.detach().clone().requires_grad_(), target.reads, recorder)
        tokens = recorder.calls[layer].tokens
        if tokens is None:
            name = network.name
            raise MethodError(f"{name}: layer {layer}: no linear projection to queries, keys and values was found")
        found = score_gradients(target.score_below_maximum(output[0]), [tokens])
        sources = {recorder.numbers[layer]: tokens}
        gradient = zeros_without_effect(network, verified, inputs, target, sources, found)[0]
    features, gradient = (
        verified.places[layer].sort_tokens(precise(tensor.detach().flatten(0, -2))) for tensor in (tokens, gradient)
    )
    return features, gradient, layout


def score_gradients(score: torch.Tensor, sources: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradient of a score with respect to each source; None where none arrives.

    Raises:
        MethodError: the module computes without gradients.
    """
    if not score.requires_grad or not all(source.requires_grad for source in sources):
        raise MethodError(NO_GRADIENTS)
    return list(torch.autograd.grad(score, sources, allow_unused=True))


def zeros_without_effect(
    network: CapturedNetwork,
    verified: VerifiedCapture,
    pixels: torch.Tensor,
    target: Target,
    sources: Mapping[int, torch.Tensor],
    gradients: Sequence[torch.Tensor | None],
) -> list[torch.Tensor]:
    """The gradients, with zeros for each source that arrives nowhere because its call has no effect on the score.

    Args:
        network: captured module.
        verified: its capture.
        pixels: as :meth:`CapturedNetwork.running` gives them.
        target: the score.
        sources: by the numbers of their calls of attention.
        gradients: in the order of the sources.

    Raises:
        MethodError: the score changes with the output of such a call, so that a gradient is missing.
    """
    missing = [number for number, gradient in zip(sources, gradients, strict=True) if gradient is None]
    numbers = (-1, *missing) if missing else ()
    with torch.no_grad():
        outputs = [network.output_of(pixels, target.reads, partial(_disturb, number))[0] for number in numbers]
    if any(not torch.equal(target.score(output), target.score(outputs[0])) for output in outputs):
        raise MethodError(NO_GRADIENTS)
    pairs = zip(sources.values(), gradients, strict=True)
    return [torch.zeros_like(source) if gradient is None else gradient for source, gradient in pairs]


def _disturb(target_call: int, call: AttentionCall) -> torch.Tensor:
    """The output of a call, with noise for one of them."""
    return call.output + torch.randn_like(call.output) if call.number == target_call else call.output


def _pooled(
    call: AttentionCall, gradient: torch.Tensor, verified: VerifiedCapture, layout: TokenLayout
) -> torch.Tensor:
    """``A ⊙ ∂y/∂A`` of an attention pooling, ``"head token"``, from the gradient of its output."""
    weights = pooling_weights(call, verified.order)
    change = (precise(gradient[0]) @ precise(call.values[0].detach()).mT).squeeze(1)
    if change.shape[-1] == verified.order.patches:
        change = F.pad(change, (layout.prefix_count, 0))
    else:
        change = verified.order.sort(change, 1)
    return weights * change

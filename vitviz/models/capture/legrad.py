"""Gradients of the scores of each layer's tokens in a captured module, for LeGrad."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from vitviz.errors.kinds import MethodError
from vitviz.models.autograd import NO_GRADIENTS, arriving_gradients
from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.gradients import score_gradients
from vitviz.models.capture.residual import StreamTap
from vitviz.models.capture.verification import VerifiedCapture
from vitviz.models.targets import Target

if TYPE_CHECKING:
    from vitviz.models.capture.network import CapturedNetwork


@dataclass
class _LayerRecorder:
    """Records each layer's attention and tokens, and detaches the layers from each other.

    A layer's tokens then depend on its own attention only, so that one backward pass serves all layers.
    """

    verified: VerifiedCapture
    calls: list[AttentionCall] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    tokens: list[torch.Tensor] = field(default_factory=list)

    def on_call(self, call: AttentionCall) -> torch.Tensor:
        if self.verified.layer_of(call.number) is None:
            return call.output
        self.calls.append(call)
        self.outputs.append(call.output.detach().requires_grad_())
        # A copy, since the module may change its output in place.
        return self.outputs[-1].clone()

    def on_step(self, step: int, tokens: torch.Tensor) -> torch.Tensor:
        if not step:
            return tokens
        self.tokens.append(tokens)
        return tokens.detach().clone()


def captured_layer_gradients(
    network: CapturedNetwork, pixels: torch.Tensor, target: Target, start_layer: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Gradients of every layer's score with respect to its attention; its tokens are scored as if it were the last.

    Args:
        network: the captured module.
        pixels: ``"1 channel height width"``.
        target: the score.
        start_layer: the lowest layer.

    Yields:
        For each layer, gradient and values, both ``"head token dim"`` in the order of the layout.

    Raises:
        MethodError: its tokens cannot be read between its layers, or the module computes without gradients.
    """
    verified = network.verified(pixels)
    stream, recorder = network.require_stream(verified), _LayerRecorder(verified)
    with network.running(pixels, has_gradients=True) as inputs, arriving_gradients(network):
        network.output_of(inputs, target.reads, recorder.on_call, StreamTap(stream, recorder.on_step))
        ends = torch.cat(recorder.tokens[start_layer:])

        def replace(step: int, tokens: torch.Tensor) -> torch.Tensor:
            # Tokens below the last layer need no graph in this pass.
            return ends if step == len(stream.ends) else tokens.detach()

        output = network.output_of(inputs, target.reads, partial(_detach_layers, verified), StreamTap(stream, replace))
        score = torch.stack([target.score(row) for row in output]).sum()
        found = score_gradients(score, recorder.outputs[start_layer:])
    gradients = [gradient for gradient in found if gradient is not None]
    if len(gradients) < len(found):
        raise MethodError(NO_GRADIENTS)
    layers = zip(verified.places[start_layer:], recorder.calls[start_layer:], gradients, strict=True)
    for places, call, gradient in layers:
        context = places.by_window(call).context_gradient(gradient)
        yield places.sort(context), places.sort(call.values.detach())


def _detach_layers(verified: VerifiedCapture, call: AttentionCall) -> torch.Tensor:
    """The output of a call, detached if it is a layer; a pooling after the layers keeps its graph."""
    return call.output if verified.layer_of(call.number) is None else call.output.detach()

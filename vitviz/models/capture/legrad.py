"""Gradients of scores that are read from each layer's own tokens of a captured module, for LeGrad."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.gradients import score_gradients
from vitviz.models.capture.network import CapturedNetwork
from vitviz.models.capture.residual import StreamTap
from vitviz.models.capture.verification import VerifiedCapture
from vitviz.models.targets import Target


@dataclass
class _Layers:
    """Keeps each layer's attention and what it gives, and cuts the layers off from each other.

    A layer's tokens then depend on its own attention alone, so that one backward pass serves all layers.
    """

    verified: VerifiedCapture
    number: int = 0
    calls: list[AttentionCall] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    tokens: list[torch.Tensor] = field(default_factory=list)

    def on_call(self, call: AttentionCall) -> torch.Tensor:
        number, self.number = self.number, self.number + 1
        if self.verified.layer_of(number) is None:
            return call.output
        self.calls.append(call)
        self.outputs.append(call.output.detach().requires_grad_())
        # A copy: the module may change its own in place.
        return self.outputs[-1].clone()

    def on_step(self, step: int, tokens: torch.Tensor) -> torch.Tensor:
        if not step:
            return tokens
        self.tokens.append(tokens)
        return tokens.detach().clone()


def captured_layer_gradients(
    network: CapturedNetwork, pixels: torch.Tensor, target: Target, start_layer: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The score of every layer's own tokens, read as those of the last, with respect to that layer's attention.

    Args:
        network: of the module.
        pixels: ``"1 channel height width"``.
        target: whose score.
        start_layer: the lowest layer that is wanted.

    Yields:
        Gradient and values, both ``"head token dim"`` in the order of the layout, layer by layer.

    Raises:
        MethodError: its tokens cannot be read between its layers, or the module computes without gradients.
    """
    verified = network.verified(pixels)
    stream, layers = network.known_stream(verified), _Layers(verified)
    with network.running(pixels, has_gradients=True) as own:
        network.output_of(own, target.reads, layers.on_call, StreamTap(stream, layers.on_step))
        ends = torch.cat(layers.tokens[start_layer:])

        def replace(step: int, found: torch.Tensor) -> torch.Tensor:
            # What is below needs no graph of its own.
            return ends if step == len(stream.ends) else found.detach()

        output = network.output_of(own, target.reads, _Detached(verified), StreamTap(stream, replace))
        score = torch.stack([target.score(each) for each in output]).sum()
        gradients = score_gradients(score, layers.outputs[start_layer:])
    wanted = zip(verified.places[start_layer:], layers.calls[start_layer:], gradients, strict=True)
    for places, call, gradient in wanted:
        context = places.by_window(call).context_gradient(gradient)
        yield places.sort(context), places.sort(call.values.detach())


@dataclass
class _Detached:
    """Gives the layers their own attention without a graph; a pooling behind them keeps its own."""

    verified: VerifiedCapture
    number: int = 0

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        number, self.number = self.number, self.number + 1
        return call.output if self.verified.layer_of(number) is None else call.output.detach()

"""Gradients of a score with respect to a module's attention, by running its program again.

They are the derivatives of what the module computed, also where it ran without gradients itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from vitviz.attention.layout import TokenLayout
from vitviz.attention.precision import precise
from vitviz.errors.kinds import MethodError
from vitviz.models.autograd import NO_GRADIENTS, arriving_gradients
from vitviz.models.gradient_trace import GradientTrace
from vitviz.models.targets import Target
from vitviz.models.watched.calls import AttentionCall
from vitviz.models.watched.program import Result, first_tensor
from vitviz.models.watched.program_outputs import replayed, replayed_from, require_hiding, require_stream
from vitviz.models.watched.recording import pooling_weights
from vitviz.models.watched.switching import ablation
from vitviz.models.watched.verification import VerifiedModule

if TYPE_CHECKING:
    from vitviz.models.watched.watched_network import WatchedNetwork


@dataclass
class _GraphRecorder:
    """Records some calls and their outputs in the graph of the score.

    The graph starts at the first output, so that nothing below it needs a gradient.

    Args:
        numbers: numbers of the calls.
        calls: with their outputs in the graph.
    """

    numbers: Collection[int]
    calls: list[AttentionCall] = field(default_factory=list)

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        if call.number not in self.numbers:
            return call.output
        output = call.output if self.calls else call.output.detach().requires_grad_()
        self.calls.append(replace(call, output=output))
        # A copy, since the module may change its output in place.
        return output.clone()


def watched_gradients(network: WatchedNetwork, pixels: torch.Tensor, target: Target, start_layer: int) -> GradientTrace:
    """As :func:`vitviz.models.gradients.trace_gradients`, for a watched module.

    Raises:
        MethodError: the score is at its maximum, the module does not return what it reads, or no gradient arrives.
    """
    verified = network.verified(pixels)
    pooling_calls = () if verified.pooling_call is None else (verified.pooling_call,)
    recorder = _GraphRecorder((*verified.calls[start_layer:], *pooling_calls))
    layout = network.config.layout(*pixels.shape[-2:])
    with network.running(pixels, has_gradients=True) as inputs, arriving_gradients(network):
        output = replayed(network, verified, inputs, target.reads, recorder)
        score = target.score_below_maximum(output[0])
        steps = [verified.replay.last_step(call.number) for call in recorder.calls]
        gradients = score_gradients(verified, score, [call.output for call in recorder.calls], steps)
    count = len(verified.calls) - start_layer
    layers, pooling = recorder.calls[:count], recorder.calls[count:]
    ordered = list(zip(verified.places[start_layer:], layers, strict=True))
    scale = layers[0].scale
    return GradientTrace(
        tuple(place.sort(call.queries.detach()) * (call.scale / scale) for place, call in ordered),
        tuple(place.sort(call.keys.detach()) for place, call in ordered),
        tuple(place.sort(call.values.detach(), has_pad_values=True) for place, call in ordered),
        tuple(place.sort(gradient) for (place, _), gradient in zip(ordered, gradients[:count], strict=True)),
        (None,) * count,
        scale,
        layout,
        start_layer,
        target,
        float(score.detach()),
        _pooled(pooling[0], gradients[count], verified) if pooling else None,
        tuple(place.bias(call) for place, call in ordered),
    )


def watched_features(
    network: WatchedNetwork, pixels: torch.Tensor, target: Target, layer: int
) -> tuple[torch.Tensor, torch.Tensor, TokenLayout]:
    """The input of a layer's attention, after its norm, and the score's gradient with respect to it.

    Returns:
        Both ``"token width"``, and the order of the tokens.

    Raises:
        MethodError: as :func:`watched_gradients`, or no linear projection to queries, keys and values was found.
    """
    verified = network.verified(pixels)
    layout = network.config.layout(*pixels.shape[-2:])
    reference = verified.replay.tokens_of(verified.calls[layer])
    if reference is None:
        raise MethodError(f"{network.name}: layer {layer}: no linear projection to queries, keys and values was found")
    found: list[torch.Tensor] = []

    def hook(number: int, args: Any, kwargs: Any, result: Any, values: Any) -> Any:
        found.append(first_tensor(result).detach().requires_grad_())
        copy = found[0].clone()
        return copy if isinstance(result, torch.Tensor) else (copy, *result[1:])

    with network.running(pixels, has_gradients=True) as inputs, arriving_gradients(network):
        output = replayed(network, verified, inputs, target.reads, hooks={reference.step: hook})
        gradient = score_gradients(verified, target.score_below_maximum(output[0]), found, [reference.step])[0]
    features, gradient = (
        verified.places[layer].sort_tokens(precise(tensor.detach().reshape(-1, tensor.shape[-1])))
        for tensor in (found[0], gradient)
    )
    return features, gradient, layout


def watched_layer_gradients(
    network: WatchedNetwork, pixels: torch.Tensor, target: Target, start_layer: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Gradients of every layer's score with respect to its attention; its tokens are scored as if it were the last.

    A layer and what follows the last one are run again from the tokens before it.

    Args:
        network: the watched module.
        pixels: ``"1 channel height width"``.
        target: the score.
        start_layer: the lowest layer.

    Yields:
        For each layer, gradient and values, both ``"head token dim"`` in the order of the layout.

    Raises:
        MethodError: its tokens cannot be read between its layers, or no gradient arrives.
    """
    verified = network.verified(pixels)
    stream, program = require_stream(network.name, verified), verified.replay.program
    with network.running(pixels) as inputs:
        steps = stream.tokens_of(verified.replay, inputs)
    for layer in range(start_layer, len(verified.calls)):
        recorder = _GraphRecorder([verified.calls[layer]])
        hooks = verified.replay.hooks(recorder)
        with network.running(pixels, has_gradients=True), arriving_gradients(network):
            given = stream.given(program, layer, steps[layer])
            [tokens] = program.run(given, [Result(stream.ends[layer])], hooks)
            output = replayed_from(network, verified, stream.in_front(first_tensor(tokens)), target.reads)
            score = target.score_of(output[0])
            [call] = recorder.calls
            [gradient] = score_gradients(verified, score, [call.output], [stream.ends[layer]])
        places = verified.places[layer]
        yield places.sort(gradient), places.sort(call.values.detach())


def watched_attention_gradients(
    network: WatchedNetwork,
    pixels: torch.Tensor,
    covered: Collection[int],
    score: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """As :func:`vitviz.models.attention_gradients.attention_gradients`, for a watched module.

    Raises:
        MethodError: its patches cannot be hidden, or no gradient arrives.
    """
    verified = network.verified(pixels)
    require_hiding(network.name, verified)
    layout = network.config.layout(*pixels.shape[-2:])
    with network.running(pixels, has_gradients=True) as inputs, arriving_gradients(network):
        bias = torch.zeros(layout.token_count, device=inputs.device, requires_grad=True)
        on_call = ablation(verified, None, {layout.prefix_count + patch for patch in covered}, bias)
        output = replayed(network, verified, inputs, "logits", on_call)
        [gradient] = torch.autograd.grad(score(output), bias)
    return gradient[layout.prefix_count :].cpu()


def score_gradients(
    verified: VerifiedModule, score: torch.Tensor, sources: Sequence[torch.Tensor], steps: Sequence[int]
) -> list[torch.Tensor]:
    """The gradient of a score with respect to each source; zeros for those that the output does not read.

    Args:
        verified: the module.
        score: of its output.
        sources: results in the graph of the score.
        steps: number of the step of each source.

    Raises:
        MethodError: no gradient arrives from a source that the output reads.
    """
    found = torch.autograd.grad(score, sources, allow_unused=True) if score.requires_grad else [None] * len(sources)
    live = verified.replay.program.live
    if any(each is None and step in live for each, step in zip(found, steps, strict=True)):
        raise MethodError(NO_GRADIENTS)
    return [torch.zeros_like(source) if each is None else each for source, each in zip(sources, found, strict=True)]


def _pooled(call: AttentionCall, gradient: torch.Tensor, verified: VerifiedModule) -> torch.Tensor:
    """``A ⊙ ∂y/∂A`` of an attention pooling, ``"head token"``, from the gradient of its output."""
    weights = pooling_weights(call, verified)
    return weights * verified.sort_read((precise(gradient[0]) @ precise(call.values[0].detach()).mT).squeeze(1))

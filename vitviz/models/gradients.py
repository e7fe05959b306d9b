"""The gradient of a class with respect to the attention weights of every layer, in memory linear in the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from vitviz.attention.layout import TokenLayout, index_from_end
from vitviz.attention.memory import trim_heap
from vitviz.attention.precision import precise
from vitviz.errors.kinds import ImageError
from vitviz.models.autograd import arriving_gradients
from vitviz.models.gradient_trace import GradientTrace
from vitviz.models.layers import AttentionOutput, AttentionPooling, EncoderLayer
from vitviz.models.network import Network
from vitviz.models.targets import Target, class_target

if TYPE_CHECKING:
    from vitviz.models.vit import VisionTransformer

__all__ = ["GradientTrace", "layer_features", "layer_gradients", "trace_gradients", "with_gradients"]


def trace_gradients(
    network: Network, pixels: torch.Tensor, target: Target | int, start_layer: int = 0
) -> GradientTrace:
    """Run a network on one image, forwards and from a score back down to a layer's attention.

    The backward pass is that of the fused kernel. It stops at the start layer's attention, and skips the weights if
    they are frozen, as those of :func:`vitviz.load` are.

    Args:
        network: in evaluation mode.
        pixels: ``"1 channel height width"``, normalised as the checkpoint was trained.
        target: the score to differentiate, or the index of a class.
        start_layer: the lowest layer of the trace, counted from 0, or from the end as ``-1``.

    Raises:
        MethodError: the model has no such class, or the score is at its maximum.
        QueryError: the model has no such layer.
        ImageError: as :meth:`VisionTransformer.forward`, or there are several images.
    """
    config = network.config
    if isinstance(target, int):
        target = class_target(target, config.classes)
    start_layer = index_from_end("layer", start_layer, config.depth)
    if len(pixels) != 1:
        raise ImageError(f"{len(pixels)} images: expected one, '1 channel height width'")
    return network.with_gradients(pixels, target, start_layer)


def with_gradients(network: VisionTransformer, pixels: torch.Tensor, target: Target, start_layer: int) -> GradientTrace:
    """As :func:`trace_gradients`, for vitviz's own network, with legal arguments."""
    with torch.inference_mode(False), arriving_gradients(network):
        tokens, layout, angles, steps = _entering(network, pixels, target, start_layer)
        with torch.enable_grad():
            attentions: list[AttentionOutput] = []
            contexts: list[torch.Tensor] = []
            for layer, count in steps:
                attention = layer.attend(tokens, angles, count)
                context = attention.context if contexts else attention.context.detach().requires_grad_()
                tokens = layer.residual_mlp(tokens, context)
                attentions.append(attention)
                contexts.append(context)
            pooling_attention: list[AttentionOutput] = []
            score = target.score_below_maximum(network.read(tokens, layout, target.reads, pooling_attention.append)[0])
            trim_heap(contexts[0])
            gradients = torch.autograd.grad(score, [*contexts, *(attention.context for attention in pooling_attention)])
            trim_heap(contexts[0])
            layer_gradients, pooling_gradients = gradients[: len(contexts)], gradients[len(contexts) :]
    return GradientTrace(
        tuple(attention.queries[0].detach() for attention in attentions),
        tuple(attention.keys[0].detach() for attention in attentions),
        tuple(attention.values[0].detach() for attention in attentions),
        tuple(_complete(gradient[0], layout.token_count) for gradient in layer_gradients),
        tuple(_complete_sums(attention.log_sums, layout.token_count) for attention in attentions),
        network.scale,
        layout,
        start_layer,
        target,
        float(score.detach()),
        _pooled(pooling_attention[0], pooling_gradients[0], layout) if pooling_attention else None,
    )


def layer_features(
    network: VisionTransformer, pixels: torch.Tensor, target: Target, layer: int
) -> tuple[torch.Tensor, torch.Tensor, TokenLayout]:
    """The input of a layer's attention, after its norm, and the score's gradient with respect to it.

    Args:
        network: in evaluation mode.
        pixels: ``"1 channel height width"``, normalised as the checkpoint was trained.
        target: the score to differentiate.
        layer: counted from 0.

    Returns:
        Both ``"token width"`` in at least single precision, and the order of the tokens.

    Raises:
        MethodError: the score is at its maximum.
    """
    with torch.inference_mode(False), arriving_gradients(network):
        tokens, layout, angles, ((encoder_layer, count), *above) = _entering(network, pixels, target, layer)
        with torch.enable_grad():
            normed = encoder_layer.attention_norm(tokens).detach().requires_grad_()
            stream = encoder_layer.residual_mlp(tokens, encoder_layer.attention(normed, angles, count).context)
            for layer_above, count in above:
                stream = layer_above(stream, angles, count)
            score = target.score_below_maximum(network.read(stream, layout, target.reads)[0])
            gradient = torch.autograd.grad(score, normed)[0]
    return precise(normed[0].detach()), precise(gradient[0]), layout


@torch.no_grad()
def _entering(
    network: VisionTransformer, pixels: torch.Tensor, target: Target, layer: int
) -> tuple[torch.Tensor, TokenLayout, torch.Tensor | None, list[tuple[EncoderLayer, int]]]:
    """The tokens that enter a layer, their order, the angles, and the steps of the network from this layer on."""
    # A copy, since tensors from inference mode cannot be differentiated.
    tokens, layout = network.embed(pixels.clone())
    angles, steps = network.angles(layout), network.steps(layout, target.reads)
    for below, count in steps[:layer]:
        tokens = below(tokens, angles, count)
    return tokens, layout, angles, steps[layer:]


def layer_gradients(
    network: VisionTransformer, pixels: torch.Tensor, target: Target, start_layer: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The gradient of each layer's own score with respect to its attention, and its values: ``"head token dim"``.

    Layers are differentiated one at a time, from the output of their attention, so memory does not grow with depth.
    Arguments as :func:`trace_gradients` takes them.
    """
    with torch.inference_mode(False), torch.no_grad(), arriving_gradients(network):
        tokens, layout = network.embed(pixels.clone())
    angles, read_count = network.angles(layout), network.tokens_read(layout, target.reads)
    for number, (layer, count) in enumerate(network.steps(layout, target.reads)):
        with torch.inference_mode(False), torch.no_grad():
            attention = layer.attend(tokens, angles, count)
            if number >= start_layer:
                with torch.enable_grad():
                    context = attention.context[:, :, :read_count].detach().requires_grad_()
                    output = layer.residual_mlp(tokens, context)
                    score = target.score_of(network.read(output, layout, target.reads)[0])
                    gradient = torch.autograd.grad(score, context)[0]
            tokens = layer.residual_mlp(tokens, attention.context)
        if number >= start_layer:
            # Outside the context managers, which would otherwise hold in the caller's code.
            yield gradient[0], attention.values[0]


def _pooled(attention: AttentionOutput, gradient: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
    """``A ⊙ ∂y/∂A`` of an attention pooling, ``"head token"``, from the gradient of its output."""
    weights, values = AttentionPooling.weights(attention)[0], precise(attention.values[0])
    products = weights * (precise(gradient[0]) @ values.mT).squeeze(1)
    return F.pad(products.detach(), (layout.prefix_count, 0))


def _complete(gradient: torch.Tensor, count: int) -> torch.Tensor:
    """The gradient with zeros appended for the tokens on which the score does not depend: ``"head token dim"``."""
    return gradient if gradient.shape[1] == count else F.pad(gradient, (0, 0, 0, count - gradient.shape[1]))


def _complete_sums(log_sums: torch.Tensor | None, count: int) -> torch.Tensor | None:
    return log_sums[0] if log_sums is not None and log_sums.shape[-1] == count else None

"""The gradient of a class with respect to the attention weights of every layer, in memory linear in the tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vitviz.attention.layout import TokenLayout, index_from_end
from vitviz.attention.memory import trim_heap
from vitviz.attention.precision import precise
from vitviz.errors.kinds import ImageError
from vitviz.models.capture import CapturedNetwork
from vitviz.models.capture.gradients import captured_features, captured_gradients
from vitviz.models.gradient_trace import GradientTrace
from vitviz.models.layers import Attended, AttentionPooling
from vitviz.models.network import Network
from vitviz.models.own import own_network
from vitviz.models.targets import Target, class_target
from vitviz.models.vit import VisionTransformer

__all__ = ["GradientTrace", "layer_features", "trace_gradients"]


def trace_gradients(
    network: Network, pixels: torch.Tensor, target: Target | int, start_layer: int = 0
) -> GradientTrace:
    """Run a network on one image, forwards and from a score back down to a layer's attention.

    The backward pass is that of the fused kernel. What is below the start layer's attention is not differentiated, nor
    are the weights, if they are frozen as those of :func:`vitviz.load` are.

    Args:
        network: in evaluation mode.
        pixels: ``"1 channel height width"``, normalised as the checkpoint was trained.
        target: whose score; of a class, its index will do.
        start_layer: the lowest layer that is wanted, counted from 0, or from the end as ``-1``.

    Raises:
        MethodError: the model has no such class, or the score is as high as it can be.
        QueryError: it has no such layer.
        ImageError: as :meth:`VisionTransformer.forward`, or there are several images.
    """
    config = network.config
    if isinstance(target, int):
        target = class_target(target, config.classes)
    start_layer = index_from_end("layer", start_layer, config.depth)
    if len(pixels) != 1:
        raise ImageError(f"{len(pixels)} images: expected one, '1 channel height width'")
    if isinstance(network, CapturedNetwork):
        return captured_gradients(network, pixels, target, start_layer)
    return _own_gradients(own_network(network, "gradients"), pixels, target, start_layer)


def _own_gradients(network: VisionTransformer, pixels: torch.Tensor, target: Target, start_layer: int) -> GradientTrace:
    with torch.inference_mode(False):
        with torch.no_grad():
            # A copy: what inference mode made cannot be differentiated.
            tokens, layout = network.embed(pixels.clone())
            angles, steps = network.angles(layout), network.steps(layout, target.reads)
            for layer, count in steps[:start_layer]:
                with network.computing():
                    tokens = layer(tokens, angles, count)
        with torch.enable_grad():
            attended_layers: list[Attended] = []
            mixes: list[torch.Tensor] = []
            for layer, count in steps[start_layer:]:
                with network.computing():
                    attended = layer.attend(tokens, angles, count)
                    context = attended.context if mixes else attended.context.detach().requires_grad_()
                    tokens = layer.residual_mlp(tokens, context)
                attended_layers.append(attended)
                mixes.append(context)
            pooling_attention: list[Attended] = []
            score = target.rising_score(network.read(tokens, layout, target.reads, pooling_attention.append)[0])
            trim_heap(mixes[0])
            gradients = torch.autograd.grad(score, [*mixes, *(each.context for each in pooling_attention)])
            trim_heap(mixes[0])
            of_layers, of_pooling = gradients[: len(mixes)], gradients[len(mixes) :]
    return GradientTrace(
        tuple(attended.queries[0].detach() for attended in attended_layers),
        tuple(attended.keys[0].detach() for attended in attended_layers),
        tuple(attended.values[0].detach() for attended in attended_layers),
        tuple(_complete(gradient[0], layout.token_count) for gradient in of_layers),
        tuple(_sums_of_all(attended.log_sums, layout.token_count) for attended in attended_layers),
        network.scale,
        layout,
        start_layer,
        target,
        float(score.detach()),
        _pooled(pooling_attention[0], of_pooling[0], layout) if pooling_attention else None,
    )


def layer_features(
    network: Network, pixels: torch.Tensor, target: Target, layer: int
) -> tuple[torch.Tensor, torch.Tensor, TokenLayout]:
    """The tokens as a layer's attention takes them, after its norm, and the score's gradient with respect to them.

    Args:
        network: in evaluation mode.
        pixels: ``"1 channel height width"``, normalised as the checkpoint was trained.
        target: whose score.
        layer: counted from 0.

    Returns:
        Both ``"token width"`` in at least single precision, and which token is what.

    Raises:
        MethodError: the score is as high as it can be, or the module keeps these tokens to itself.
    """
    if isinstance(network, CapturedNetwork):
        return captured_features(network, pixels, target, layer)
    own = own_network(network, "features of a layer")
    with torch.inference_mode(False):
        with torch.no_grad():
            tokens, layout = own.embed(pixels.clone())
            angles, steps = own.angles(layout), own.steps(layout, target.reads)
            for below, count in steps[:layer]:
                with own.computing():
                    tokens = below(tokens, angles, count)
        (encoder_layer, count), *above = steps[layer:]
        with torch.enable_grad(), own.computing():
            normed = encoder_layer.attention_norm(tokens).detach().requires_grad_()
            stream = encoder_layer.residual_mlp(tokens, encoder_layer.attention(normed, angles, count).context)
            for layer_above, count in above:
                stream = layer_above(stream, angles, count)
        with torch.enable_grad():
            score = target.rising_score(own.read(stream, layout, target.reads)[0])
            gradient = torch.autograd.grad(score, normed)[0]
    return precise(normed[0].detach()), precise(gradient[0]), layout


def _pooled(attended: Attended, gradient: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
    """``A ⊙ ∂y/∂A`` of an attention pooling, ``"head token"``, from the gradient of what it gave."""
    weights, values = AttentionPooling.weights(attended)[0], precise(attended.values[0])
    products = weights * (precise(gradient[0]) @ values.mT).squeeze(1)
    return F.pad(products.detach(), (layout.prefix_count, 0))


def _complete(gradient: torch.Tensor, count: int) -> torch.Tensor:
    """``"head token dim"`` with zeros for the tokens on which the score does not depend."""
    if gradient.shape[1] == count:
        return gradient
    return torch.cat([gradient, gradient.new_zeros(gradient.shape[0], count - gradient.shape[1], gradient.shape[2])], 1)


def _sums_of_all(log_sums: torch.Tensor | None, count: int) -> torch.Tensor | None:
    return log_sums[0] if log_sums is not None and log_sums.shape[-1] == count else None

"""The gradient of a class with respect to the attention weights of every layer, in memory linear in the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vitviz.attention.layout import PATCHES, Query, TokenLayout, index_from_end
from vitviz.attention.memory import beginning, empty, trim_heap
from vitviz.attention.precision import precise
from vitviz.attention.softmax import weights_in_chunks
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.models.layers import Attended, AttentionPooling
from vitviz.models.targets import Target, class_target
from vitviz.models.vit import VisionTransformer


@dataclass(frozen=True, eq=False)
class GradientTrace:
    """What determines attention in each layer, and how the score of a class changes with what attention gives.

    Attention gives ``O = A · V``, so the gradient with respect to the attention weights is ``∂y/∂A = ∂y/∂O · Vᵀ``: both
    factors are kept, and their product is formed for a few query tokens at a time.

    Args:
        queries, keys, values: ``"head token dim"`` of every layer from ``start_layer`` on.
        gradients: of the score with respect to what attention gives, before its projection; of the same shape.
        log_sums: ``"head token"``, logarithm of the sum that the softmax divides by; None where it is not known.
        scale: what the scores are multiplied with before the softmax.
        layout: which token is what.
        start_layer: the lowest layer that is there.
        target: what was asked about.
        score: what the network gave it.
        pooled: ``"head token"``, of a model that pools by attention: the weights with which its learned query reads
            the last layer's output, each times the score's gradient with respect to it, ``A ⊙ ∂y/∂A``; zero for
            prefix tokens, which it does not read. None where the model pools otherwise.

    Raises:
        ConfigError: the layers differ in number or shape, or contradict the layout.
    """

    queries: tuple[torch.Tensor, ...]
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor, ...]
    log_sums: tuple[torch.Tensor | None, ...]
    scale: float
    layout: TokenLayout
    start_layer: int
    target: Target
    score: float
    pooled: torch.Tensor | None = None

    def __post_init__(self) -> None:
        parts = (self.queries, self.keys, self.values, self.gradients)
        if len({len(part) for part in (*parts, self.log_sums)}) != 1 or not self.queries:
            lengths = [len(part) for part in (*parts, self.log_sums)]
            raise ConfigError(f"gradient trace of {lengths} layers: expected as many of each part")
        shapes = {tuple(tensor.shape) for part in parts for tensor in part}
        if len(shapes) != 1 or next(iter(shapes))[-2] != self.layout.token_count:
            expected = f"one, 'head token dim' with {self.layout.token_count} tokens"
            raise ConfigError(f"gradient trace of shapes {sorted(shapes)}: expected {expected}")
        if self.pooled is not None and (self.pooled.ndim != 2 or self.pooled.shape[1] != self.layout.token_count):
            expected = f"'head token' with {self.layout.token_count} tokens"
            raise ConfigError(f"pooled of shape {tuple(self.pooled.shape)}: expected {expected}")

    @property
    def layers(self) -> range:
        """The numbers of the layers that are there."""
        return range(self.start_layer, self.start_layer + len(self.queries))

    @property
    def nbytes(self) -> int:
        """Bytes of queries, keys, values and gradients, and of what is pooled."""
        parts = (self.queries, self.keys, self.values, self.gradients, () if self.pooled is None else (self.pooled,))
        return sum(tensor.nbytes for part in parts for tensor in part)

    @property
    def default_query(self) -> Query:
        """The token that the score is read from: all patches, or that of the layout."""
        return PATCHES if self.target.reads == "patches" else self.layout.default_query

    def layers_from(self, start_layer: int) -> range:
        """The layers that are there, from one on that is counted from 0, or from the end as ``-1``.

        Raises:
            QueryError: the model has no such layer.
        """
        depth = self.layers.stop
        return range(max(index_from_end("layer", start_layer, depth), self.start_layer), depth)

    def in_chunks(self, layer: int, rows: slice = slice(None)) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Attention weights and the score's gradient with respect to them, a few query tokens at a time.

        Yields:
            Which query tokens, their attention weights and the gradient, both ``"head query key"``, in at most three
            buffers of :data:`vitviz.attention.softmax.CHUNK_BYTES`, which are overwritten when the next are asked for.
        """
        index = self.layers.index(layer)
        queries, keys = precise(self.queries[index]), precise(self.keys[index])
        # Otherwise every product would rearrange them anew.
        values = precise(self.values[index]).transpose(1, 2).contiguous()
        gradients = precise(self.gradients[index])
        buffer = None
        for chosen, weights in weights_in_chunks(queries, keys, self.scale, rows=rows, log_sums=self.log_sums[index]):
            if buffer is None:
                buffer = empty(weights.shape, weights)
            gradient = beginning(buffer, weights.shape)
            torch.bmm(gradients[:, chosen], values, out=gradient)
            yield chosen, weights, gradient


def trace_gradients(
    network: VisionTransformer, pixels: torch.Tensor, target: Target | int, start_layer: int = 0
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

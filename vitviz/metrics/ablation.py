"""Cause and not only correlation: what a network says when heads and patches are switched off.

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3.2: one head at a time. Naseer et al.
2021, "Intriguing Properties of Vision Transformers", section 3.1: patches that are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from einops import rearrange, repeat

from vitviz.errors.arguments import integer, pairs
from vitviz.errors.kinds import ConfigError, ImageError, MethodError, QueryError
from vitviz.models.capture import CapturedNetwork
from vitviz.models.capture.switching import output_without
from vitviz.models.network import Network
from vitviz.models.own import own_network
from vitviz.models.pooling import Output
from vitviz.models.targets import EffectScore, Target, effect_score
from vitviz.progress import Progress


@dataclass(frozen=True, eq=False)
class HeadEffects:
    """How much the score of a target owes to each head.

    Of a class, the scores are its probabilities, in [0, 1]; of another target, such as a text, what it gives, without
    a bound.

    Args:
        whole: the score with all heads.
        without: with all heads but one, ``"layer head"``.
        is_probability: whether the scores are those of a class.
    """

    whole: float
    without: torch.Tensor
    is_probability: bool

    @property
    def drop(self) -> torch.Tensor:
        """How far the score falls without each head, ``"layer head"``; negative where it rises.

        Of probabilities in [-1, 1].
        """
        return self.whole - self.without

    def __repr__(self) -> str:
        layers, heads = self.without.shape
        return f"HeadEffects({layers} layers × {heads} heads, score {self.whole:.3g} with all of them)"

    def strongest(self, count: int) -> list[tuple[int, int, float]]:
        """The heads whose removal lowers the score most: layer, head and fall."""
        best = self.drop.flatten().topk(min(integer("count", count, 0, MethodError), self.drop.numel()))
        places = [divmod(index, self.drop.shape[1]) for index in best.indices.tolist()]
        return [(layer, head, fall) for (layer, head), fall in zip(places, best.values.tolist(), strict=True)]


def switched_off(
    network: Network,
    pixels: torch.Tensor,
    heads: Iterable[tuple[int, int]] = (),
    patches: Iterable[tuple[int, int]] = (),
    output: Output = "logits",
) -> torch.Tensor:
    """What a network says of an image without some heads and some patches.

    The attention weights of a head that is off are zero, as by the head mask of
    :meth:`vitviz.VisionTransformer.forward`. A patch that is off is no key of any token in any layer, as if its scores
    were minus infinity, and is not pooled: what is left attends to what is left. The patches keep their positions.

    Args:
        network: in evaluation mode.
        pixels: ``"1 channel height width"``, normalised as the checkpoint was trained.
        heads: layer and head, counted from 0.
        patches: row and column, counted from 0.
        output: as :meth:`vitviz.VisionTransformer.read` takes it.

    Returns:
        What is read: logits ``"class"``, pooled features ``"feature"``, also as logits where there is no classifier, or
        the patches that are left, ``"patch width"``.

    Raises:
        ImageError: as :meth:`vitviz.VisionTransformer.forward`, or there are several images.
        QueryError: the model has no such head or patch, or no patch is left.
        MethodError: it is a captured module that reads patches otherwise than by attention.
    """
    if len(pixels) != 1:
        raise ImageError(f"{len(pixels)} images: expected one, '1 channel height width'")
    config = network.config
    try:
        layout = config.layout(*pixels.shape[-2:])
    except ConfigError as error:
        raise ImageError(str(error)) from None
    mask = torch.ones(config.depth, config.heads, device=network.device)
    for number, head in pairs("heads", heads, "layer and head", QueryError):
        if not (0 <= number < config.depth and 0 <= head < config.heads):
            legal = f"layers 0 to {config.depth - 1} and heads 0 to {config.heads - 1}"
            raise QueryError(f"layer {number}, head {head}: this model has {legal}")
        mask[number, head] = 0
    hidden = {layout.index(patch) for patch in pairs("patches", patches, "row and column", QueryError)}
    left = sorted(set(range(layout.token_count)) - hidden)
    if len(left) == layout.prefix_count:
        raise QueryError(f"all {layout.patch_count} patches are off: expected at least one that is on")
    if isinstance(network, CapturedNetwork):
        return output_without(network, pixels, mask, hidden, output)[0]
    network = own_network(network, "switched_off")
    with torch.inference_mode():
        tokens, layout = network.embed(pixels.to(network.device))
        remaining = torch.tensor(left, device=tokens.device)
        tokens, angles = tokens[:, remaining], network.angles(layout)
        if angles is not None:
            angles = angles[remaining[layout.prefix_count :] - layout.prefix_count]
        for (layer, count), off in zip(network.steps(layout, output), mask, strict=True):
            with network.computing():
                tokens = layer(tokens, angles, min(count, len(left)), off)
        return network.read(tokens, layout, output)[0]


def head_effects(
    network: Network,
    pixels: torch.Tensor,
    target: int | Target,
    report: Callable[[Progress], None] | None = None,
) -> HeadEffects:
    """Switch off every head alone, by setting its attention weights to zero, and classify the image.

    What is below a layer does not depend on its heads and is computed once; above it, all of a layer's heads are one
    batch. That is half the work of as many forward passes.

    Args:
        network: in evaluation mode.
        pixels: ``"1 channel height width"``, normalised as the checkpoint was trained.
        target: index of the class whose probability is told, or a target whose score is.
        report: receives how many heads have been off, after every layer; an exception that it raises ends the
            computation.

    Raises:
        MethodError: the model has no such class.
    """
    config = network.config
    watched = effect_score(target, config.classes)
    if isinstance(network, CapturedNetwork):
        return _captured_effects(network, pixels, target, watched, report)
    network = own_network(network, "head_effects")
    without = torch.zeros(config.depth, config.heads)
    alone_off = rearrange(1 - torch.eye(config.heads, device=network.device), "batch head -> batch head 1 1")
    with torch.inference_mode():
        tokens, layout = network.embed(pixels.to(network.device))
        angles, steps = network.angles(layout), network.steps(layout, watched.reads)
        for number, (layer, count) in enumerate(steps):
            with network.computing():
                context = layer.attend(tokens, angles, count).context
                switched = layer.residual_mlp(_times(tokens, config.heads), context * alone_off.to(context.dtype))
                for above, queries in steps[number + 1 :]:
                    switched = above(switched, angles, queries)
                tokens = layer.residual_mlp(tokens, context)
            without[number] = watched.scores(network.read(switched, layout, watched.reads)).cpu()
            if report is not None:
                report(Progress((number + 1) * config.heads, without.numel()))
        whole = float(watched.scores(network.read(tokens, layout, watched.reads)))
    return HeadEffects(whole, without, isinstance(target, int))


def _captured_effects(
    network: CapturedNetwork,
    pixels: torch.Tensor,
    target: int | Target,
    watched: EffectScore,
    report: Callable[[Progress], None] | None,
) -> HeadEffects:
    """The same of a captured module: one of its own forward passes for each head."""
    config = network.config
    everything = torch.ones(config.depth, config.heads, device=network.device)

    def score(mask: torch.Tensor) -> float:
        return float(watched.scores(output_without(network, pixels, mask, output=watched.reads)))

    without = torch.zeros(config.depth, config.heads)
    for layer in range(config.depth):
        for head in range(config.heads):
            mask = everything.clone()
            mask[layer, head] = 0
            without[layer, head] = score(mask)
        if report is not None:
            report(Progress((layer + 1) * config.heads, without.numel()))
    return HeadEffects(score(everything), without, isinstance(target, int))


def _times(tokens: torch.Tensor, count: int) -> torch.Tensor:
    return repeat(tokens, "1 token width -> batch token width", batch=count)

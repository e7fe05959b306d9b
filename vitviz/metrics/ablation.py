"""Causes instead of correlations: a network's output with heads and patches switched off.

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3.2: one head at a time. Naseer et al.
2021, "Intriguing Properties of Vision Transformers", section 3.1: patches are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from einops import rearrange, repeat

from vitviz.attention.precision import without_autocast
from vitviz.errors.arguments import integer, pairs
from vitviz.errors.kinds import ConfigError, ImageError, MethodError, QueryError
from vitviz.models.capture import is_captured
from vitviz.models.network import Network
from vitviz.models.pooling import Output
from vitviz.models.require import require_vit
from vitviz.models.targets import ClassProbability, EffectScore, Target, effect_score
from vitviz.models.vit import VisionTransformer
from vitviz.progress import Progress

if TYPE_CHECKING:
    from vitviz.models.capture.network import CapturedNetwork


@dataclass(frozen=True, eq=False)
class HeadEffects:
    """The effect of each head on the score of a target.

    The scores of a class are its probabilities, in [0, 1]; those of another target, such as a text, are unbounded.

    Args:
        whole: the score with all heads.
        without: the score with all heads but one, ``"layer head"``.
        is_probability: whether the scores are probabilities of a class.
    """

    whole: float
    without: torch.Tensor
    is_probability: bool

    @property
    def drop(self) -> torch.Tensor:
        """The fall of the score without each head, ``"layer head"``; negative for a rise.

        It is in [-1, 1] for probabilities.
        """
        return self.whole - self.without

    def __repr__(self) -> str:
        layers, heads = self.without.shape
        return f"HeadEffects({layers} layers × {heads} heads, score {self.whole:.3g} with all of them)"

    def strongest(self, count: int) -> list[tuple[int, int, float]]:
        """The heads whose removal lowers the score most: layer, head and fall of the score."""
        best = self.drop.flatten().topk(min(integer("count", count, 0, MethodError), self.drop.numel()))
        places = [divmod(index, self.drop.shape[1]) for index in best.indices.tolist()]
        return [(layer, head, fall) for (layer, head), fall in zip(places, best.values.tolist(), strict=True)]


@without_autocast()
def switched_off(
    network: Network,
    pixels: torch.Tensor,
    heads: Iterable[tuple[int, int]] = (),
    patches: Iterable[tuple[int, int]] = (),
    output: Output = "logits",
) -> torch.Tensor:
    """The output of a network for an image without some heads and some patches.

    A head that is off has zero attention weights, as with the head mask of :meth:`vitviz.VisionTransformer.forward`. No
    token attends to a patch that is off, in any layer, as if its scores were minus infinity, and it is not pooled. The
    remaining patches keep their positions.

    Args:
        network: in evaluation mode.
        pixels: ``"1 channel height width"``, normalised as the checkpoint was trained.
        heads: layer and head, counted from 0.
        patches: row and column, counted from 0.
        output: as in :meth:`vitviz.VisionTransformer.read`.

    Returns:
        Logits ``"class"``; pooled features ``"feature"``, which also replace the logits if there is no classifier; or
        the remaining patches, ``"patch width"``.

    Raises:
        ImageError: as :meth:`vitviz.VisionTransformer.forward`, or there are several images.
        QueryError: the model has no such head or patch, or no patch remains.
        MethodError: the model is a captured module that also reads patches outside attention.
    """
    if len(pixels) != 1:
        raise ImageError(f"{len(pixels)} images: expected one, '1 channel height width'")
    config = network.config
    try:
        layout = config.layout(*pixels.shape[-2:])
    except ConfigError as error:
        raise ImageError(str(error)) from None
    mask = torch.ones(config.depth, config.heads, dtype=torch.float32, device=network.device)
    for number, head in pairs("heads", heads, "layer and head", QueryError):
        if not (0 <= number < config.depth and 0 <= head < config.heads):
            legal = f"layers 0 to {config.depth - 1} and heads 0 to {config.heads - 1}"
            raise QueryError(f"layer {number}, head {head}: this model has {legal}")
        mask[number, head] = 0
    hidden = {layout.index(patch) for patch in pairs("patches", patches, "row and column", QueryError)}
    remaining = sorted(set(range(layout.token_count)) - hidden)
    if len(remaining) == layout.prefix_count:
        raise QueryError(f"all {layout.patch_count} patches are off: expected at least one that is on")
    if is_captured(network):
        from vitviz.models.capture.switching import output_without

        return output_without(network, pixels, mask, hidden, output)[0]
    return _outputs(require_vit(network, "switched_off"), pixels, [remaining], mask, output)[0]


@without_autocast()
def without_patches(network: Network, pixels: torch.Tensor, sets: Sequence[Collection[int]]) -> torch.Tensor:
    """The logits without each of several sets of patches, ``"set class"``, as :func:`switched_off` of one set.

    Args:
        network, pixels: as :func:`switched_off` takes them.
        sets: numbers of patches, row by row; as many in each set.
    """
    layout = network.config.layout(*pixels.shape[-2:])
    if is_captured(network):
        return torch.stack(
            [
                switched_off(network, pixels, patches=[divmod(patch, layout.grid_width) for patch in each])
                for each in sets
            ]
        )
    hidden = [{layout.prefix_count + patch for patch in each} for each in sets]
    remaining = [[token for token in range(layout.token_count) if token not in each] for each in hidden]
    return _outputs(require_vit(network, "without_patches"), pixels, remaining)


def _outputs(
    network: VisionTransformer,
    pixels: torch.Tensor,
    remaining: Sequence[Sequence[int]],
    mask: torch.Tensor | None = None,
    output: Output = "logits",
) -> torch.Tensor:
    """The output of each set of remaining tokens, all of one size and with the prefix tokens first."""
    with torch.inference_mode():
        tokens, layout = network.embed(pixels.to(network.device))
        indices = torch.tensor(remaining, device=tokens.device)
        angles = network.angles(layout)
        if angles is not None:
            angles = angles[indices[:, None, layout.prefix_count :] - layout.prefix_count]
        tokens = tokens[0, indices]
        for number, (layer, count) in enumerate(network.steps(layout, output)):
            tokens = layer(tokens, angles, min(count, indices.shape[1]), None if mask is None else mask[number])
        return network.read(tokens, layout, output)


@without_autocast()
def head_effects(
    network: Network,
    pixels: torch.Tensor,
    target: int | Target,
    report: Callable[[Progress], None] | None = None,
) -> HeadEffects:
    """The score with each head switched off in turn, by setting its attention weights to zero.

    The layers below do not depend on a layer's heads and are computed once; above it, all of a layer's heads form one
    batch. This takes half the work of a forward pass per head.

    Args:
        network: in evaluation mode.
        pixels: ``"1 channel height width"``, normalised as the checkpoint was trained.
        target: index of the class whose probability to measure, or a target whose score to measure.
        report: receives the number of finished heads after each layer; an exception from it ends the computation.

    Raises:
        MethodError: the model has no such class.
    """
    config = network.config
    score = effect_score(target, config.classes, config.probability)
    if is_captured(network):
        return _captured_effects(network, pixels, score, report)
    network = require_vit(network, "head_effects")
    without = torch.zeros(config.depth, config.heads, dtype=torch.float32)
    masks = rearrange(
        1 - torch.eye(config.heads, dtype=torch.float32, device=network.device), "batch head -> batch head 1 1"
    )
    with torch.inference_mode():
        tokens, layout = network.embed(pixels.to(network.device))
        angles, steps = network.angles(layout), network.steps(layout, score.reads)
        for number, (layer, count) in enumerate(steps):
            context = layer.attend(tokens, angles, count).context
            ablated = layer.residual_mlp(_repeat(tokens, config.heads), context * masks.to(context.dtype))
            for above, queries in steps[number + 1 :]:
                ablated = above(ablated, angles, queries)
            tokens = layer.residual_mlp(tokens, context)
            without[number] = score.scores(network.read(ablated, layout, score.reads)).cpu()
            if report is not None:
                report(Progress((number + 1) * config.heads, without.numel()))
        whole = float(score.scores(network.read(tokens, layout, score.reads)))
    return HeadEffects(whole, without, isinstance(score, ClassProbability))


def _captured_effects(
    network: CapturedNetwork,
    pixels: torch.Tensor,
    score: EffectScore,
    report: Callable[[Progress], None] | None,
) -> HeadEffects:
    """As :func:`head_effects`, for a captured module: one forward pass for each head."""
    from vitviz.models.capture.switching import output_without

    config = network.config
    all_heads = torch.ones(config.depth, config.heads, dtype=torch.float32, device=network.device)

    def value(mask: torch.Tensor) -> float:
        return float(score.scores(output_without(network, pixels, mask, output=score.reads)))

    without = torch.zeros(config.depth, config.heads, dtype=torch.float32)
    for layer in range(config.depth):
        for head in range(config.heads):
            mask = all_heads.clone()
            mask[layer, head] = 0
            without[layer, head] = value(mask)
        if report is not None:
            report(Progress((layer + 1) * config.heads, without.numel()))
    return HeadEffects(value(all_heads), without, isinstance(score, ClassProbability))


def _repeat(tokens: torch.Tensor, count: int) -> torch.Tensor:
    return repeat(tokens, "1 token width -> batch token width", batch=count)

"""Causes instead of correlations: a network's output with heads and patches switched off.

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?", section 3.2: one head at a time. Naseer et al.
2021, "Intriguing Properties of Vision Transformers", section 3.1: patches are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import torch

from vitviz.attention.precision import plain_torch
from vitviz.errors.arguments import integer, pairs
from vitviz.errors.kinds import ImageError, MethodError, QueryError
from vitviz.models.network import Network
from vitviz.models.pooling import Output
from vitviz.models.targets import Target, effect_score
from vitviz.progress import Progress


@dataclass(frozen=True, eq=False)
class HeadEffects:
    """The effect of each head on the score of a target.

    The scores of a class are its probabilities, in [0, 1]; those of another target, such as a text, are unbounded.

    Args:
        whole: the score with all heads.
        without: the score with all heads but one, ``"layer head"``.
    """

    whole: float
    without: torch.Tensor

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


@plain_torch()
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
        ConfigError: the sides of the image are no multiples of the patch, or too large.
        ImageError: there are several images.
        QueryError: the model has no such head or patch, or no patch remains.
        MethodError: the model is a watched module that also reads patches outside attention.
    """
    if len(pixels) != 1:
        raise ImageError(f"{len(pixels)} images: expected one, '1 channel height width'")
    config = network.config
    layout = config.layout(*pixels.shape[-2:])
    mask = torch.ones(config.depth, config.heads, dtype=torch.float32, device=network.device)
    for number, head in pairs("heads", heads, "layer and head", QueryError):
        if not (0 <= number < config.depth and 0 <= head < config.heads):
            legal = f"layers 0 to {config.depth - 1} and heads 0 to {config.heads - 1}"
            raise QueryError(f"layer {number}, head {head}: this model has {legal}")
        mask[number, head] = 0
    cells = pairs("patches", patches, "row and column", QueryError)
    hidden = {layout.index(cell) - layout.prefix_count for cell in cells}
    if len(hidden) == layout.patch_count:
        raise QueryError(f"all {layout.patch_count} patches are off: expected at least one that is on")
    return network.without(pixels, mask, [hidden], output)[0]


@plain_torch()
def without_patches(network: Network, pixels: torch.Tensor, sets: Sequence[Collection[int]]) -> torch.Tensor:
    """The logits without each of several sets of patches, ``"set class"``, as :func:`switched_off` of one set.

    Args:
        network, pixels: as :func:`switched_off` takes them.
        sets: numbers of patches, row by row; as many in each set.
    """
    return network.without(pixels, patches=sets)


@plain_torch()
def head_effects(
    network: Network,
    pixels: torch.Tensor,
    target: int | Target,
    report: Callable[[Progress], None] | None = None,
) -> HeadEffects:
    """The score with each head switched off in turn, by setting its attention weights to zero.

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
    whole, without = network.head_scores(pixels, score, report)
    return HeadEffects(whole, without)

"""Patches of two pictures that are alike, and groups of alike patches in several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from vitviz.attention.token_map import TokenMap
from vitviz.errors.arguments import boolean, integer, named_arguments
from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import MethodError
from vitviz.features.analysed import Analysed, featured
from vitviz.features.vectors import Kind
from vitviz.visualization.heatmaps import Heatmap

Cell = tuple[int, int]
Box = tuple[float, float, float, float]
# Starts of k-means, of which the best is kept, and rounds of each at most.
STARTS, ROUNDS = 10, 100


@dataclass(frozen=True)
class Match(AttributeAdvice):
    """Two patches of two pictures that are alike.

    Args:
        score: their cosine, in [-1, 1].
        patches: the ``(row, column)`` of each in the grid of its picture.
        boxes: left, top, right and bottom of each in pixels of its picture.
    """

    score: float
    patches: tuple[Cell, Cell]
    boxes: tuple[Box, Box]


@named_arguments(MethodError)
def matches(a: Any, b: Any, mutual: bool = True, *, layer: int | None = None, of: Kind = "tokens") -> list[Match]:
    """For each patch of a picture the most similar one of another picture, best first.

    Amir et al. 2021, "Deep ViT Features as Dense Visual Descriptors", whose correspondences are mutual nearest
    neighbours: the *best buddies* of Dekel et al. 2015, "Best-Buddies Similarity for Robust Template Matching",
    equation 1, by cosine. Outlier patches are left out.

    Args:
        a, b: analyses by one model, of any sizes.
        mutual: whether to keep only pairs of which each is the other's most similar patch.
        layer, of: as :meth:`vitviz.Analysis.features` takes them.

    Raises:
        ConfigError: these are no analyses.
        MethodError: their models differ, or as :meth:`vitviz.Analysis.features`.
        QueryError: the model has no such layer.

    >>> pairs = vitviz.matches(analysis, analysis)
    >>> pairs[0].patches[0] == pairs[0].patches[1], len(pairs)
    (True, 196)
    """
    mutual, pairs = boolean("mutual", mutual), featured([a, b], layer, of)
    [mine, theirs] = [each.unit[each.kept] for _, each in pairs]
    cosines, found = (mine @ theirs.T).clamp(-1, 1), []
    best, back = cosines.argmax(1).tolist(), cosines.argmax(0).tolist()
    for index in cosines.amax(1).argsort(descending=True, stable=True).tolist():
        if not mutual or back[best[index]] == index:
            tokens = pairs[0][1].kept[index], pairs[1][1].kept[best[index]]
            first, second = (_place(each, token) for (each, _), token in zip(pairs, tokens, strict=True))
            found.append(Match(float(cosines[index, best[index]]), (first[0], second[0]), (first[1], second[1])))
    return found


def _place(analysis: Analysed, token: int) -> tuple[Cell, Box]:
    layout = analysis.trace.layout
    cell = layout.cell(token)
    return cell, analysis.prepared.geometry.patch_rectangle(*cell, layout.grid_height, layout.grid_width)


@named_arguments(MethodError)
def clusters(analyses: Any, k: int, *, layer: int | None = None, of: Kind = "tokens", seed: int = 0) -> list[Heatmap]:
    """Groups of alike patches in several pictures, by k-means on the cosine.

    Amir et al. 2021, "Deep ViT Features as Dense Visual Descriptors", cluster the patches of all pictures together, for
    parts that they share. Vectors and centres have length 1, as in Dhillon & Modha 2001, "Concept Decompositions for
    Large Sparse Text Data Using Clustering". Outlier patches have no part in the centres.

    Args:
        analyses: by one model, of any sizes; or one alone.
        k: number of groups.
        layer, of: as :meth:`vitviz.Analysis.features` takes them.
        seed: of ten random starts, of which the best is kept.

    Returns:
        A map of each picture, whose values are the numbers of the groups, from 0 for the one with most patches.

    Raises:
        ConfigError: these are no analyses.
        MethodError: their models differ, there are more groups than patches, or as :meth:`vitviz.Analysis.features`.
        QueryError: the model has no such layer.

    >>> [heatmap] = vitviz.clusters([analysis], 4)
    >>> heatmap.values.unique().tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    pairs, k = featured(analyses, layer, of), integer("k", k, 1, MethodError)
    vectors = torch.cat([each.unit[each.kept] for _, each in pairs]).double()
    if k > len(vectors):
        raise MethodError(f"k = {k}: expected at most {len(vectors)}, the number of patches")
    random = torch.Generator().manual_seed(integer("seed", seed, 0, MethodError))
    starts = [_centres(vectors, vectors[torch.randperm(len(vectors), generator=random)[:k]]) for _ in range(STARTS)]
    centres = max(starts, key=lambda each: float((vectors @ each.T).amax(1).mean()))
    sizes = (vectors @ centres.T).argmax(1).bincount(minlength=k)
    centres = centres[sizes.argsort(descending=True, stable=True)]
    maps = []
    for analysis, each in pairs:
        groups = (each.unit.double() @ centres.T).argmax(1)
        description = f"One of {k} groups of alike patches, by the {each.description}; a number means nothing"
        maps.append(analysis.heatmap_of(TokenMap.of_tokens(groups, each.layout, "group", description, (0.0, k - 1.0))))
    return maps


def _centres(vectors: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """The centres ``"group channel"`` to which k-means of vectors ``"patch channel"`` comes from these."""
    for _ in range(ROUNDS):
        groups = F.one_hot((vectors @ centres.T).argmax(1), len(centres)).to(vectors)
        # A group that lost all its patches keeps its centre.
        moved = torch.where(groups.any(0)[:, None], F.normalize(groups.T @ vectors, dim=1), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres

"""Patches of two pictures that are alike, and groups of alike patches in several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vitviz.attention.precision import plain_torch
from vitviz.errors.arguments import boolean, integer, named_arguments
from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import MethodError
from vitviz.features.analysed import featured
from vitviz.features.colour_maps import ColourMap, ColourMaps, group_colours
from vitviz.features.vectors import Kind

# Starts of k-means, of which the best is kept.
STARTS = 10


@dataclass(frozen=True)
class Match(AttributeAdvice):
    """Two patches of two pictures that are alike.

    Args:
        score: their cosine, in [-1, 1].
        patches: the ``(row, column)`` of each in the grid of its picture.
        boxes: left, top, right and bottom of each in pixels of its picture.
    """

    score: float
    patches: tuple[tuple[int, int], tuple[int, int]]
    boxes: tuple[tuple[float, float, float, float], tuple[float, float, float, float]]


@named_arguments(MethodError)
@plain_torch()
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
    pairs = featured([a, b], layer, of)
    [(_, mine), (_, theirs)] = pairs
    cosines = (mine.unit[mine.inliers] @ theirs.unit[theirs.inliers].T).clamp(-1, 1)
    scores, best = cosines.max(1)
    order = scores.argsort(descending=True, stable=True)
    if boolean("mutual", mutual):
        order = order[cosines.argmax(0)[best[order]] == order]
    found = []
    for index in order.tolist():
        first, second = mine.layout.cell(mine.inliers[index]), theirs.layout.cell(theirs.inliers[best[index]])
        boxes = [
            analysis.prepared.geometry.patch_rectangle(*cell, *features.values.shape[:2])
            for (analysis, features), cell in zip(pairs, (first, second), strict=True)
        ]
        found.append(Match(float(scores[index]), (first, second), (boxes[0], boxes[1])))
    return found


@named_arguments(MethodError)
@plain_torch()
def clusters(analyses: Any, k: int, *, layer: int | None = None, of: Kind = "tokens", seed: int = 0) -> ColourMaps:
    """Groups of alike patches in several pictures, by k-means.

    Amir et al. 2021, "Deep ViT Features as Dense Visual Descriptors", cluster the patches of all pictures together, for
    parts that they share. Vectors have length 1. Outlier patches have no part in the centres.

    Args:
        analyses: by one model, of any sizes; or one alone.
        k: number of groups; there are fewer where fewer patches differ.
        layer, of: as :meth:`vitviz.Analysis.features` takes them.
        seed: of ten random starts, of which the best is kept.

    Returns:
        A map of each picture, with the number of each patch's group, from 0 for the one with most patches, and with one
        colour for each group, in all of the pictures.

    Raises:
        ConfigError: these are no analyses.
        MethodError: their models differ, there are more groups than patches, or as :meth:`vitviz.Analysis.features`.
        QueryError: the model has no such layer.

    >>> maps = vitviz.clusters([analysis], 4)
    >>> maps.save("groups.png")
    >>> maps[0].values.unique().tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    # Imported here, so that other results do not wait for scipy.
    from scipy.cluster.vq import kmeans, vq

    pairs, k = featured(analyses, layer, of), integer("k", k, 1, MethodError)
    vectors = torch.cat([each.unit[each.inliers] for _, each in pairs]).double().numpy()
    if k > len(vectors):
        raise MethodError(f"k = {k}: expected at most {len(vectors)}, the number of patches")
    centres, _ = kmeans(vectors, k, STARTS, seed=np.random.default_rng(integer("seed", seed, 0, MethodError)))
    sizes = np.bincount(vq(vectors, centres)[0], minlength=len(centres))
    centres, colours, maps = centres[(-sizes).argsort(kind="stable")], group_colours(len(centres)), []
    description = f"Same colour: one of {len(centres)} groups of alike patches; which colour means nothing. By the "
    for analysis, each in pairs:
        patches, prepared = each.unit[each.layout.prefix_count :].double().numpy(), analysis.prepared
        groups = torch.from_numpy(vq(patches, centres)[0]).long().view(each.values.shape[:2])
        picture = prepared.image, prepared.geometry, each.layer, description + each.description
        maps.append(ColourMap(groups[..., None].float(), colours[groups], *picture, is_smooth=False))
    return ColourMaps(maps)

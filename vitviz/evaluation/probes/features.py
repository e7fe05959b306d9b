"""Probes of a layer's patches, by :mod:`vitviz.features`: their components as colours, and their similarity."""

from __future__ import annotations

import torch

from vitviz.analysis.analysis import Analysis
from vitviz.attention.layout import Query, numbered
from vitviz.errors.arguments import instance, word
from vitviz.errors.number_text import digits, percent
from vitviz.evaluation.probes.findings import Findings, Measurement
from vitviz.features import KINDS, Kind, components

COLOURS = ("red", "green", "blue")
NEAREST_COUNT = 5


def token_features(analysis: Analysis, layer: int = -1, features: Kind = "tokens") -> torch.Tensor:
    """A vector of length 1 for every token, ``"token feature"``, of :meth:`vitviz.Analysis.features`.

    Raises:
        QueryError: the model has no such layer.
        MethodError: there are no such features.
    """
    return instance("analysis", analysis, Analysis, "vitviz.analyze(image, model)").features(layer, features).unit


def patch_components(analysis: Analysis, layer: int = -1) -> Findings:
    """The first three principal components of the patches' tokens after a layer, as :func:`vitviz.components`.

    Oquab et al. 2023, "DINOv2: Learning Robust Visual Features without Supervision", figure 1.

    Returns:
        ``colours``: ``"row column channel"``, in [0, 1]; ``variance``: ``"component"``, each one's share of the total
        variance.

    Raises:
        QueryError: the model has no such layer.
    """
    maps = components([analysis], layer)
    shares = maps.basis.shares
    where = numbered("layer", maps[0].layer, analysis.trace.layers)
    return Findings(
        "patch_components",
        f"After {where}, three components hold {percent(float(shares.sum()))} of the variance of the patches' tokens.",
        {
            "colours": Measurement(
                maps[0].colours,
                ("row", "column", "channel"),
                "two components as hues, the third as lightness",
                {"channel": COLOURS},
            ),
            "variance": Measurement(shares.float(), ("component",), "share of the variance"),
        },
        ("component", "drawn as", "share of the variance"),
        tuple(
            (str(index), part, percent(float(shares[index])))
            for index, part in enumerate(("green to red", "blue to yellow", "dark to light"))
        ),
    )


def patch_similarity(
    analysis: Analysis, query: Query | None = None, layer: int = -1, features: Kind = "tokens"
) -> Findings:
    """The cosine similarity of one token with every other, after a layer, as :meth:`vitviz.Analysis.similarity`.

    Caron et al. 2021, "Emerging Properties in Self-Supervised Vision Transformers"; keys as in Amir et al. 2021, "Deep
    ViT Features as Dense Visual Descriptors".

    Args:
        analysis: analysis of one image.
        query: the token, or ``"patches"`` for the mean of their vectors; by default the patch in the middle.
        layer, features: as in :func:`token_features`.

    Returns:
        ``similarity``: ``"token"``, in [-1, 1]; 1 for the token itself.

    Raises:
        QueryError: the model has no such layer or token.
        MethodError: there are no such features.
    """
    layout, of = analysis.trace.layout, word("features", features, KINDS)
    query = (layout.grid_height // 2, layout.grid_width // 2) if query is None else query
    selection, found = layout.select(query), analysis.features(layer, of)
    similarity = found.likeness(selection, found)
    query_token = selection.start if selection.stop - selection.start == 1 else None
    ranked = [token for token in similarity.argsort(descending=True).tolist() if token != query_token]
    nearest = [token for token in ranked if token >= layout.prefix_count][:NEAREST_COUNT]
    closest = f": {layout.name(nearest[0])} is most like it" if nearest else ""
    where = numbered("layer", found.layer, analysis.trace.layers)
    place = f"after {where}" if of == "tokens" else f"among the {of} of {where}"
    return Findings(
        "patch_similarity",
        f"Cosine of {layout.query_name(query)} with every token {place}{closest}.",
        {"similarity": Measurement(similarity, ("token",), "cosine")},
        ("most like it", "cosine"),
        tuple((layout.name(token), digits(float(similarity[token]))) for token in nearest),
    )

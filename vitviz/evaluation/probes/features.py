"""Probes of a layer's patches: their principal components as colours, and their similarity."""

from __future__ import annotations

from itertools import islice

import torch
import torch.nn.functional as F

from vitviz.analysis.analysis import Analysis
from vitviz.attention.layout import Query, numbered
from vitviz.errors.number_text import digits, percent
from vitviz.evaluation.probes.findings import Findings, Measurement
from vitviz.evaluation.probes.tokens import token_features, token_stream

COLOURS = ("red", "green", "blue")
NEAREST_COUNT = 5


def patch_components(analysis: Analysis, layer: int = -1) -> Findings:
    """The first three principal components of the patches' tokens after a layer, as red, green and blue.

    Oquab et al. 2024, "DINOv2: Learning Robust Visual Features without Supervision", figure 1. Patches of one colour
    have similar tokens; the colour itself has no meaning. A component's sign makes its largest weight positive.

    Returns:
        ``colours``: ``"row column channel"``, each component from its lowest patch (0) to its highest (1);
        ``variance``: ``"component"``, each one's share of the total variance.

    Raises:
        QueryError: the model has no such layer.
    """
    trace = analysis.trace
    layout, layer = trace.layout, trace.layer_index(layer)
    tokens = next(islice(token_stream(analysis), layer + 1, None))[layout.prefix_count :].to("cpu", torch.float64)
    centred = tokens - tokens.mean(0)
    # The covariance of features rather than of tokens: memory does not grow with the square of the tokens.
    variances, directions = torch.linalg.eigh(centred.T @ centred)
    count = min(len(COLOURS), len(variances))
    variances, directions = variances.flip(0).clamp(min=0), directions.flip(1)[:, :count]
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    projected = centred @ (directions * largest.sign())
    low, high = projected.amin(0), projected.amax(0)
    span = high - low
    colours = torch.zeros(len(tokens), len(COLOURS), dtype=torch.float64)
    colours[:, :count] = (projected - low) / span.where(span > 0, 1.0)
    total = variances.sum()
    shares = torch.zeros(len(COLOURS), dtype=torch.float64)
    shares[:count] = variances[:count] / total.where(total > 0, 1.0)
    where = numbered("layer", layer, trace.layers)
    return Findings(
        "patch_components",
        f"After {where}, three components hold {percent(float(shares.sum()))} of the variance of the patches' tokens.",
        {
            "colours": Measurement(
                colours.float().unflatten(0, (layout.grid_height, layout.grid_width)),
                ("row", "column", "channel"),
                "component from lowest to highest",
                {"channel": COLOURS},
            ),
            "variance": Measurement(shares.float(), ("component",), "share of the variance"),
        },
        ("component", "colour", "share of the variance"),
        tuple((str(index), colour, percent(float(shares[index]))) for index, colour in enumerate(COLOURS)),
    )


def patch_similarity(
    analysis: Analysis, query: Query | None = None, layer: int = -1, features: str = "tokens"
) -> Findings:
    """The cosine similarity of one token with every other, after a layer.

    Caron et al. 2021, "Emerging Properties in Self-Supervised Vision Transformers"; keys as in Amir et al. 2022, "Deep
    ViT Features as Dense Visual Descriptors".

    Args:
        analysis: analysis of one image.
        query: the token, or ``"patches"`` for the mean of their vectors; by default the patch in the middle.
        layer, features: as in :func:`token_features`.

    Returns:
        ``similarity``: ``"token"``, in [-1, 1]; 1 for the token itself. ``vectors``: ``"token feature"``, each of
        length 1, so that the product of two is their cosine.

    Raises:
        QueryError: the model has no such layer or token.
        MethodError: there are no such features.
    """
    layout = analysis.trace.layout
    query = (layout.grid_height // 2, layout.grid_width // 2) if query is None else query
    selection, name = layout.select(query), layout.query_name(query)
    vectors = token_features(analysis, layer, features)
    similarity = (vectors @ F.normalize(vectors[selection].mean(0), dim=0)).clamp(-1, 1)
    query_token = selection.start if selection.stop - selection.start == 1 else None
    ranked = [token for token in similarity.argsort(descending=True).tolist() if token != query_token]
    where = numbered("layer", analysis.trace.layer_index(layer), analysis.trace.layers)
    nearest = [token for token in ranked if token >= layout.prefix_count][:NEAREST_COUNT]
    place = "after" if features == "tokens" else "among the keys of"
    closest = f": {layout.name(nearest[0])} is most like it" if nearest else ""
    return Findings(
        "patch_similarity",
        f"Cosine of {name} with every token {place} {where}{closest}.",
        {
            "similarity": Measurement(similarity, ("token",), "cosine"),
            "vectors": Measurement(vectors, ("token", "feature"), "part of a vector of length 1"),
        },
        ("most like it", "cosine"),
        tuple((layout.name(token), digits(float(similarity[token]))) for token in nearest),
    )

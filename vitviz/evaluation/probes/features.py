"""What the patches of a layer have in common: their principal components as colours, and their similarity."""

from __future__ import annotations

from itertools import islice

import torch
import torch.nn.functional as F

from vitviz.analysis.analysis import Analysis
from vitviz.attention.layout import Query, numbered
from vitviz.errors.number_text import digits, percent
from vitviz.evaluation.probes.findings import Findings, Measurement
from vitviz.evaluation.probes.tokens import stream_of, token_features

COLOURS = ("red", "green", "blue")
NEAREST = 5


def patch_components(analysis: Analysis, layer: int = -1) -> Findings:
    """The first three principal components of the patches' tokens after a layer, as red, green and blue.

    Oquab et al. 2024, "DINOv2: Learning Robust Visual Features without Supervision", figure 1. Patches of one colour
    have like tokens; which colour it is means nothing. A component's sign is the one in which its largest weight is
    positive.

    Returns:
        ``colours``: ``"row column channel"``, each component from its lowest patch (0) to its highest (1);
        ``variance``: ``"component"``, the share of the whole variance that each has.

    Raises:
        QueryError: the model has no such layer.
    """
    trace = analysis.trace
    layout, layer = trace.layout, trace.layer_index(layer)
    tokens = next(islice(stream_of(analysis), layer + 1, None))[layout.prefix_count :].to("cpu", torch.float64)
    centred = tokens - tokens.mean(0)
    # Of the features, not of the tokens: memory grows with the number of tokens, not with its square.
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
        tuple((str(place), colour, percent(float(shares[place]))) for place, colour in enumerate(COLOURS)),
    )


def patch_similarity(
    analysis: Analysis, query: Query | None = None, layer: int = -1, features: str = "tokens"
) -> Findings:
    """The cosine of one token with every other, after a layer.

    Caron et al. 2021, "Emerging Properties in Self-Supervised Vision Transformers"; keys as in Amir et al. 2022, "Deep
    ViT Features as Dense Visual Descriptors".

    Args:
        analysis: of one image.
        query: the token, or ``"patches"`` for the mean of their vectors; the patch in the middle where it is not given.
        layer, features: as :func:`token_features` takes them.

    Returns:
        ``similarity``: ``"token"``, in [-1, 1]; 1 for the token itself. ``vectors``: ``"token feature"``, each of
        length 1, whose products are the cosines of any two tokens.

    Raises:
        QueryError: the model has no such layer or token.
        MethodError: there are no such features.
    """
    layout = analysis.trace.layout
    query = (layout.grid_height // 2, layout.grid_width // 2) if query is None else query
    chosen, name = layout.select(query), layout.name(query)
    vectors = token_features(analysis, layer, features)
    similarity = (vectors @ F.normalize(vectors[chosen].mean(0), dim=0)).clamp(-1, 1)
    own = chosen.start if chosen.stop - chosen.start == 1 else None
    others = [other for other in similarity.argsort(descending=True).tolist() if other != own]
    where = numbered("layer", analysis.trace.layer_index(layer), analysis.trace.layers)
    nearest = [other for other in others if other >= layout.prefix_count][:NEAREST]
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
        tuple((layout.name(other), digits(float(similarity[other]))) for other in nearest),
    )

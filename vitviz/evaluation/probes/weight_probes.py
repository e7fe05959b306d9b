"""Probes of the weights alone: the similarity of positions, and the filters of the patch embedding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange

from vitviz.errors.number_text import digits, percent
from vitviz.evaluation.probes.findings import Findings, Measurement
from vitviz.weights import Model

NO_POSITIONS = "this model has no learned position embeddings: its positions are rotary"
# As in the figure of Dosovitskiy et al.
MAX_FILTERS = 28


def position_similarity(model: Model) -> Findings:
    """The cosine of every patch's position embedding with every other's, on the trained grid.

    Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", figure 7.

    Returns:
        ``similarity``: ``"row column 'other row' 'other column'"``, in [-1, 1].
    """
    positions = model.own_network("position_similarity").positions.detach().cpu().double()
    height, width, _ = positions.shape
    vectors = F.normalize(positions.flatten(0, 1), dim=-1)
    cosines = (vectors @ vectors.T).clamp(-1, 1)
    similarity = cosines.reshape(height, width, height, width)
    rows = []
    for distance in range(max(height, width)):
        beside = similarity.diagonal(distance, 1, 3).diagonal(0, 0, 1) if distance < width else None
        below = similarity.diagonal(distance, 0, 2).diagonal(0, 0, 1) if distance < height else None
        cells = ("–" if values is None else digits(float(values.mean())) for values in (beside, below))
        rows.append((str(distance), *cells))
    return Findings(
        "position_similarity",
        f"Positions on a grid of {height}×{width}: the mean cosine of two is {digits(float(cosines.mean()))}.",
        {"similarity": Measurement(similarity.float(), ("row", "column", "other row", "other column"), "cosine")},
        ("patches apart", "in a row", "in a column"),
        tuple(rows),
    )


def patch_filters(model: Model) -> Findings:
    """The principal components of the patch embedding's filters: the patterns by which patches become tokens.

    Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", figure 7. A component's sign makes its largest weight
    positive.

    Returns:
        ``filters``: ``"component channel row column"``, each of length 1; ``variance``: ``"component"``, share of the
        total variance.
    """
    network = model.own_network("patch_filters")
    config, weight = network.config, network.patch_embedding.weight.detach().cpu().double()
    _, sizes, directions = torch.linalg.svd(weight - weight.mean(0), full_matrices=False)
    count = min(MAX_FILTERS, len(sizes))
    directions = directions[:count]
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    shape = {"height": config.patch_height, "width": config.patch_width}
    pattern = "component (channel height width) -> component channel height width"
    filters = rearrange(directions * largest.sign(), pattern, **shape)
    variances = sizes.square()
    shares = variances[:count] / variances.sum()
    cumulative = shares.cumsum(0)
    half = int((cumulative < 0.5).sum()) + 1
    subject = f"{half} of {len(sizes)} components hold" if half <= count else f"the first {count} hold less than"
    return Findings(
        "patch_filters",
        f"Of the variance of {config.width} filters, {subject} half.",
        {
            "filters": Measurement(filters.float(), ("component", "channel", "row", "column"), "weight"),
            "variance": Measurement(shares.float(), ("component",), "share of the variance"),
        },
        ("component", "share of the variance", "with those before"),
        tuple(
            (str(index), percent(float(share)), percent(float(total)))
            for index, (share, total) in enumerate(zip(shares, cumulative, strict=True))
        ),
    )

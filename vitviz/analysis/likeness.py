"""Likeness to another picture as a target, which needs no classifier."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from vitviz.analysis.analysis import Analysis
from vitviz.attention.memory import enough_memory
from vitviz.attention.precision import plain_torch, precise
from vitviz.errors.arguments import instance, named_arguments
from vitviz.errors.kinds import MethodError
from vitviz.images.preprocessing import PreparedImage
from vitviz.models.network import Network
from vitviz.models.pooling import Output
from vitviz.models.targets import LikenessScore, Target

UNNAMED = "another picture"


@named_arguments(MethodError)
def likeness(other: Analysis, patch: tuple[int, int] | None = None, *, name: str | None = None) -> Target:
    """A target whose score is the likeness to another picture, or to a patch of it.

    The score is a cosine. Without a patch it is ``cos(f, g)`` between the pooled features ``f`` of the picture and
    ``g`` of the other one, which a classifier would read; Stylianou, Souvenir & Pless 2019, "Visualizing Deep
    Similarity Networks", draw maps of it. With a patch it is ``mean_p cos(t_p, t)`` between the final tokens ``t_p`` of
    the picture's patches and ``t`` of the other one's patch, the mean of the usual map of patch similarity; Amir et al.
    2022, "Deep ViT Features as Dense Visual Descriptors". Features of the other picture are constants.

    It runs the model on the other picture once more. The other picture may have another size. With a patch, it may be
    the explained picture itself.

    Args:
        other: the other picture, encoded by the model that the target is for.
        patch: row and column of its patch; None for the whole picture.
        name: of the other picture in captions; by default the name of its file.

    Returns:
        A target for every function that takes one. Without a patch, the likeness of a picture to itself is 1, its
        maximum: methods that follow a gradient from there refuse it.

    Raises:
        MethodError: ``other`` is no analysis.
        QueryError: it has no such patch.

    >>> vitviz.likeness(analysis, (6, 6)).name
    'likeness to patch (6, 6) of cat.jpg'
    """
    instance("other", other, Analysis, "vitviz.analyze(other_image, model)")
    layout = other.trace.layout
    row_column = None if patch is None else layout.cell(layout.index(patch))
    if name is None:
        name = other.source.name if isinstance(other.source, Path) else UNNAMED
    return likeness_target(other.network, other.prepared, row_column, name)


@plain_torch()
def likeness_target(network: Network, prepared: PreparedImage, patch: tuple[int, int] | None, name: str) -> Target:
    """The target of :func:`likeness` for a picture that is prepared but not analysed.

    Args:
        network: the network that the target is for.
        prepared: the other picture.
        patch: row and column of its patch; None for the whole picture.
        name: of the other picture in captions.

    Raises:
        QueryError: it has no such patch.
        LimitError: the machine has not enough memory for it.
    """
    reads: Output = "features" if patch is None else "patches"
    layout = network.config.layout(*prepared.pixels.shape[-2:])
    index = None if patch is None else layout.index(patch) - layout.prefix_count
    with torch.inference_mode(False), torch.no_grad(), enough_memory(f"likeness at {layout.token_count:,} tokens"):
        output = network.output(prepared.pixels.clone().to(network.device), reads)[0]
        features = F.normalize(precise(output if index is None else output[index]), dim=-1).clone()
    title = f"likeness to {'' if patch is None else f'{layout.name(patch)} of '}{name}"
    return Target(title, LikenessScore(features, title), reads, maximum=1.0)

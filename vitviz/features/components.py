"""The colours of the papers: principal components of the patches of one or several pictures."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from vitviz.attention.precision import plain_torch
from vitviz.errors.arguments import boolean, instance, integer, named_arguments
from vitviz.errors.kinds import MethodError
from vitviz.errors.number_text import percent
from vitviz.features.analysed import featured
from vitviz.features.basis import Basis
from vitviz.features.colour_maps import ColourMap, Components, component_colours
from vitviz.features.vectors import Kind
from vitviz.models.weight_samples import weight_samples


@named_arguments(MethodError)
@plain_torch()
def components(
    analyses: Any,
    layer: int | None = None,
    *,
    of: Kind = "tokens",
    count: int = 3,
    foreground: bool = False,
    basis: Basis | None = None,
) -> Components:
    """The principal components of the patches of several pictures, or frames of a clip, in one basis.

    Patches of one colour are alike to the network, in all of the pictures; which colour means nothing. Oquab et al.
    2023, "DINOv2: Learning Robust Visual Features without Supervision", figure 1 and its section on PCA of patch
    features. Here the vectors have length 1, outlier patches and prefix tokens have no part in the basis, colours have
    their ends at the 1st and 99th percentile, and the first two components are hues and the third is the lightness, of
    OKLab.

    Args:
        analyses: by one model, of any sizes; or one alone.
        layer, of: as :meth:`vitviz.Analysis.features` takes them.
        count: how many components; the first three have colours.
        foreground: whether to take the components of the foreground alone, and leave the rest black: the patches on
            that side of the mean of the first component to which fewer of the patches at the pictures' borders belong.
            Often this is the main object, and not always.
        basis: of an earlier result, ``maps.basis``, for the same colours; in place of ``count`` and ``foreground``.

    Returns:
        A map of each picture, with its components as numbers and as colours, and ``basis``.

    Raises:
        ConfigError: these are no analyses, or the basis is none.
        MethodError: their models differ, there are not as many components, the basis is of another model, layer or kind
            of vectors, or as :meth:`vitviz.Analysis.features`.
        QueryError: the model has no such layer.

    >>> maps = vitviz.components([analysis], foreground=True)
    >>> maps.save("components.png")
    """
    pairs = featured(analyses, layer, of)
    pictures, part = [F.normalize(each.values, dim=-1) for _, each in pairs], pairs[0][1].description
    source = of, pairs[0][1].layer, weight_samples(pairs[0][0].model.network.state_dict().values())
    if basis is None:
        vectors = torch.cat([each.unit[each.inliers] for _, each in pairs])
        side = Basis.of(vectors, 1).seen_from(pictures) if boolean("foreground", foreground) else None
        basis = Basis.of(vectors, integer("count", count, 1, MethodError), side, source)
    if instance("basis", basis, Basis, "maps.basis").source != source:
        raise MethodError(f"basis: of other vectors; expected one of the {part} of the same model")
    inside = [basis.inside(picture) for picture in pictures]
    if basis.foreground is not None:
        share = percent(float(torch.cat([each.flatten() for each in inside]).float().mean()))
        part = f"the foreground's {part} (the foreground is {share} of the patches)"
    description = (
        f"Same colour: alike to the network; which colour means nothing. Of {part}, {len(basis.shares)} "
        f"component{'s hold' if len(basis.shares) > 1 else ' holds'} {percent(float(basis.shares.sum()))} of the "
        "variance of the patches that made their basis"
    )
    maps = []
    for (analysis, each), picture, is_inside in zip(pairs, pictures, inside, strict=True):
        values, prepared = basis.project(picture), analysis.prepared
        colours = component_colours(basis.place(values)).float() * is_inside[..., None]
        maps.append(ColourMap(values, colours, prepared.image, prepared.geometry, each.layer, description, basis=basis))
    return Components(maps)

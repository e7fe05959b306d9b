"""The share of attention on the object of a photograph, if its plain background reveals the outline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitviz.analysis.encoder import analyze
from vitviz.errors.kinds import DataError
from vitviz.evaluation.counting import count_images
from vitviz.images.opening import open_image
from vitviz.visualization.regions import region_shares
from vitviz.weights import Model

# Width of the border in which the background must be plain, as a share of the shorter side.
BORDER_SHARE = 1 / 16
# Share of the border that must have the background's colour, and by how much of 255 a channel may differ from it.
MIN_PLAIN_SHARE, MAX_DIFFERENCE = 0.97, 30
# Limits of the share of the picture that the object covers.
MIN_AREA, MAX_AREA = 0.05, 0.6
# An object that fills more of its bounding box is a framed picture.
MAX_BOX_SHARE = 0.95
# Size that a component needs to belong to the object, relative to the largest.
MIN_COMPONENT_SHARE = 0.1


def outline(picture: Image.Image) -> np.ndarray | None:
    """A mask of the object against a plain background, ``"height width"``; None if there is none.

    A background is plain if 97 % of the border has nearly its median colour. The object is everything that differs from
    that colour, with its holes filled. Outlines are rough: shadows belong to the object, but parts as bright as the
    background do not.
    """
    # Imported here, since it takes half a second.
    from scipy import ndimage

    pixels = np.asarray(picture.convert("RGB"), float)
    width = max(1, round(min(pixels.shape[:2]) * BORDER_SHARE))
    border = np.ones(pixels.shape[:2], bool)
    border[width:-width, width:-width] = False
    background = np.median(pixels[border], axis=0)
    differs = np.abs(pixels - background).max(-1) > MAX_DIFFERENCE
    if differs[border].mean() > 1 - MIN_PLAIN_SHARE:
        return None
    components, count = ndimage.label(ndimage.binary_fill_holes(ndimage.binary_opening(differs)))
    if not count:
        return None
    sizes = np.bincount(components.ravel())
    sizes[0] = 0
    mask = (sizes >= MIN_COMPONENT_SHARE * sizes.max())[components] & (components > 0)
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    box = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
    return mask if MIN_AREA < mask.mean() < MAX_AREA and mask.sum() < MAX_BOX_SHARE * box else None


@dataclass(frozen=True, eq=False)
class ObjectAttention:
    """The share of attention on the objects of photographs.

    Args:
        areas: ``"image"``, share of the model's input that the object covers, which is the share of even attention.
        heads: ``"image layer head"``, share of one token's attention to all patches that lies on the object.
        rollout: ``"image"``, the same for mean attention rollout.
        query: name of the token in captions.
        paths: the photographs that have an outline.
    """

    areas: torch.Tensor
    heads: torch.Tensor
    rollout: torch.Tensor
    query: str
    paths: tuple[Path, ...]

    @property
    def best_head(self) -> tuple[int, int]:
        """Layer and head with the most attention on the objects of every second photograph, from the first on."""
        layer, head = divmod(int(self.heads[::2].mean(0).argmax()), self.heads.shape[2])
        return layer, head

    def table(self) -> str:
        """Means in Markdown; the best head is selected on every second photograph and measured on the others."""
        layer, head = self.best_head
        test_images = slice(1, None, 2)
        last = self.heads.shape[1] - 1
        rows = [
            (f"mean over all heads of layer {last}", self.heads[:, -1].mean(-1), self.areas),
            ("mean over all layers and heads", self.heads.mean((-1, -2)), self.areas),
            (f"head {head} of layer {layer}, the best", self.heads[test_images, layer, head], self.areas[test_images]),
            ("mean attention rollout", self.rollout, self.areas),
        ]
        lines = [f"| {self.query} | on the object | even attention | ratio |", "| --- | --- | --- | --- |"]
        for name, shares, areas in rows:
            share, area = float(shares.mean()), float(areas.mean())
            lines.append(f"| {name} | {share:.1%} | {area:.1%} | {share / area:.2f} |")
        return "\n".join(lines)


def attention_on_objects(
    model: Model,
    images: Iterable[Path],
    report: Callable[[int], None] | None = None,
    resolution: int | None = None,
) -> ObjectAttention:
    """The share of attention on the object, for all photographs that have an outline.

    Args:
        model: its CLS token is the query, or the mean of all patches without one.
        images: files; those without a plain background are skipped.
        report: receives the number of finished files after each.
        resolution: as in :func:`vitviz.analyze`.

    Raises:
        ImageError: an image cannot be opened, or nobody says what part of it the model sees.
        ConfigError: there is no such resolution.
        DataError: fewer than two photographs have an outline.
    """
    areas, heads, rollouts, paths = [], [], [], []
    for path in count_images(images, report):
        mask = outline(open_image(path, str(path)))
        if mask is not None:
            analysis = analyze(path, model, resolution=resolution)
            layout, prepared = analysis.trace.layout, analysis.prepared
            grid = layout.grid_height, layout.grid_width
            shares = region_shares(mask, prepared.image, prepared.geometry, grid)
            # The object may lie outside the crop.
            if shares.any():
                areas.append(shares.mean())
                heads.append(_share_on_object(layout.grid(analysis.trace.rows(layout.default_query)), shares))
                rollouts.append(_share_on_object(analysis.rollout().values, shares))
                paths.append(path)
    if len(paths) < 2:
        raise DataError(f"{len(paths)} images show an object against a plain background; expected at least two")
    return ObjectAttention(
        areas=torch.stack(areas),
        heads=torch.stack(heads),
        rollout=torch.stack(rollouts),
        query=layout.name(layout.default_query),
        paths=tuple(paths),
    )


def _share_on_object(values: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """The share of values ``"... row column"`` on an object, given its shares of the patches: ``"..."``."""
    values = values.double().cpu()
    return (values * shares).sum((-1, -2)) / values.sum((-1, -2))

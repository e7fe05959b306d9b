"""Whether attention lies on the thing that a photograph shows, where its outline can be known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitviz.analysis.encoder import analyze
from vitviz.errors.kinds import DataError
from vitviz.images.geometry import Geometry
from vitviz.images.opening import open_image
from vitviz.weights import Model

# Width of the border in which a background must be plain, as a part of the shorter side.
BORDER = 1 / 16
# Part of the border that has the background's colour, and by how much of 255 a channel may differ from it.
PLAIN, DIFFERENCE = 0.97, 30
# Parts of a picture that a thing covers.
LEAST, MOST = 0.05, 0.6
# Part of its own bounding box that a thing may fill; what fills more is a framed picture.
FILLED = 0.95
# Parts of the largest piece that another piece needs to belong to the thing.
PIECE = 0.1


def outline(picture: Image.Image) -> np.ndarray | None:
    """Where a thing before a plain background is: ``"height width"``, True on it; None where there is none to be had.

    Plain is a border of which 97 % have nearly its median colour. The thing is what differs from that colour, with its
    holes filled: shadows and what is as bright as the background are taken wrongly, so that outlines are rough.
    """
    # Half a second, which importing vitviz does not take.
    from scipy import ndimage

    pixels = np.asarray(picture.convert("RGB"), float)
    width = max(1, round(min(pixels.shape[:2]) * BORDER))
    border = np.ones(pixels.shape[:2], bool)
    border[width:-width, width:-width] = False
    background = np.median(pixels[border], axis=0)
    differs = np.abs(pixels - background).max(-1) > DIFFERENCE
    if differs[border].mean() > 1 - PLAIN:
        return None
    pieces, count = ndimage.label(ndimage.binary_fill_holes(ndimage.binary_opening(differs)))
    if not count:
        return None
    sizes = np.bincount(pieces.ravel())
    sizes[0] = 0
    thing = (sizes >= PIECE * sizes.max())[pieces] & (pieces > 0)
    rows, columns = np.flatnonzero(thing.any(1)), np.flatnonzero(thing.any(0))
    box = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
    return thing if LEAST < thing.mean() < MOST and thing.sum() < FILLED * box else None


def patch_shares(thing: np.ndarray, geometry: Geometry, grid_height: int, grid_width: int) -> torch.Tensor:
    """The part of every patch that lies on a thing: ``"row column"``, in [0, 1].

    Args:
        thing: ``"height width"``, True on it, in pixels of the user's image.
        geometry: where the model's input lies on it.
        grid_height, grid_width: patches.
    """
    from scipy import ndimage

    # Mean over a rectangle with edges between pixels, from sums of all that is above and to the left.
    sums = np.pad(thing.cumsum(0, dtype=float).cumsum(1), ((1, 0), (1, 0)))
    left, top, right, bottom = geometry.box
    rows, columns = np.linspace(top, bottom, grid_height + 1), np.linspace(left, right, grid_width + 1)
    corners = ndimage.map_coordinates(sums, np.meshgrid(rows, columns, indexing="ij"), order=1, mode="nearest")
    inside = np.diff(np.diff(corners, axis=0), axis=1)
    areas = np.diff(rows)[:, None] * np.diff(columns)
    return torch.from_numpy(inside / areas).clamp(0, 1)


@dataclass(frozen=True, eq=False)
class ObjectAttention:
    """How much attention lies on the things of some photographs.

    Args:
        areas: ``"image"``, the part of what the model sees that the thing covers: what even attention would give.
        heads: ``"image layer head"``, of one token's attention to all patches, the part that lies on the thing.
        rollout: ``"image"``, the same of mean attention rollout.
        query: the token that attends, by its name in captions.
        paths: the photographs that have an outline.
    """

    areas: torch.Tensor
    heads: torch.Tensor
    rollout: torch.Tensor
    query: str
    paths: tuple[Path, ...]

    @property
    def best_head(self) -> tuple[int, int]:
        """Layer and head with the most attention on the things of every second photograph, the first among them."""
        found = int(self.heads[::2].mean(0).argmax())
        return found // self.heads.shape[2], found % self.heads.shape[2]

    def table(self) -> str:
        """Means in Markdown; the best head is chosen on every second photograph and measured on the others."""
        layer, head = self.best_head
        others = slice(1, None, 2)
        last = self.heads.shape[1] - 1
        rows = [
            (f"mean over all heads of layer {last}", self.heads[:, -1].mean(-1), self.areas),
            ("mean over all layers and heads", self.heads.mean((-1, -2)), self.areas),
            (f"head {head} of layer {layer}, the best", self.heads[others, layer, head], self.areas[others]),
            ("mean attention rollout", self.rollout, self.areas),
        ]
        lines = [f"| {self.query} | on the thing | even attention | ratio |", "| --- | --- | --- | --- |"]
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
    """How much attention lies on the thing, over all photographs whose outline can be known.

    Args:
        model: what looks. Its CLS token attends, or the mean of all patches where it has none.
        images: files; those without a plain background are passed over.
        report: receives how many files are done, after each.
        resolution: as :func:`vitviz.analyze` takes it.

    Raises:
        ImageError: an image cannot be opened.
        ConfigError: there is no such resolution.
        DataError: fewer than two photographs have an outline.
    """
    areas, heads, rollouts, paths = [], [], [], []
    query = ""
    for number, path in enumerate(images):
        thing = outline(open_image(path, str(path)))
        if thing is not None:
            analysis = analyze(path, model, resolution=resolution)
            layout = analysis.trace.layout
            shares = patch_shares(thing, analysis.prepared.geometry, layout.grid_height, layout.grid_width)
            # What lies outside of a crop is not seen.
            if shares.any():
                areas.append(shares.mean())
                heads.append(_on(layout.grid(analysis.trace.rows(layout.default_query)), shares))
                rollouts.append(_on(analysis.rollout().values, shares))
                paths.append(path)
                query = layout.name(layout.default_query)
        if report is not None:
            report(number + 1)
    if len(paths) < 2:
        raise DataError(f"{len(paths)} images show a thing before a plain background; expected at least two")
    return ObjectAttention(torch.stack(areas), torch.stack(heads), torch.stack(rollouts), query, tuple(paths))


def _on(values: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """The part of values ``"... row column"`` that lies on a thing, of which every patch has its share: ``"..."``."""
    values = values.double().cpu()
    return (values * shares).sum((-1, -2)) / values.sum((-1, -2))

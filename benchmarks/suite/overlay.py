"""A map over a picture, as it is sent to the browser."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure

from benchmarks.benchmark import Benchmark, Case, Models, Run
from benchmarks.networks import B_16
from vitviz import Geometry, Heatmap, Style, TokenMap, open_image
from vitviz.weights import resources

SIDE, EXTENT = 1024, (-0.5, 1023.5, 1023.5, -0.5)
VITVIZ = "vitviz, JPEG"
PATCHES, SMOOTH = f"{SIDE:,} px, patch by patch", f"{SIDE:,} px, smooth"


def _picture() -> Heatmap:
    image = open_image(resources("assets") / "astronaut.jpg").resize((SIDE, SIDE))
    values = torch.rand(14, 14, generator=torch.Generator().manual_seed(0))
    geometry = Geometry(SIDE, SIDE, (0.0, 0.0, float(SIDE), float(SIDE)), B_16.image, B_16.image)
    return Heatmap(TokenMap(values, {}, "attention weight", "random"), image, geometry)


def _matplotlib(models: Models, **options: Any) -> Run:
    picture, interpolation = _picture(), "bilinear" if models.case.variant == SMOOTH else "nearest"

    def run() -> bytes:
        figure, stream = Figure(figsize=(SIDE / 100, SIDE / 100), dpi=100), io.BytesIO()
        axes = figure.add_axes((0, 0, 1, 1))
        axes.axis("off")
        axes.imshow(picture.image)
        axes.imshow(picture.values.numpy(), "turbo", alpha=0.6, extent=EXTENT, interpolation=interpolation)
        figure.savefig(stream, **options)
        return stream.getvalue()

    return run


def _vitviz(models: Models) -> Run:
    picture, style = _picture(), Style(smooth=models.case.variant == SMOOTH)
    return lambda: picture.overlay(style).save(io.BytesIO(), "JPEG", quality=90)


BENCHMARK = Benchmark(
    "overlay",
    "An overlay",
    "A map of 14×14 patches in colours over a photograph, as a JPEG of quality 90 in memory; by matplotlib also as it "
    "saves a figure if nothing else is said.",
    tuple(Case(B_16, 15, variant=variant) for variant in (PATCHES, SMOOTH)),
    {
        "matplotlib, JPEG": partial(_matplotlib, format="jpeg", pil_kwargs={"quality": 90}),
        "matplotlib, as it saves a figure (PNG)": _matplotlib,
        VITVIZ: _vitviz,
    },
    bars={(VITVIZ, "time"): (1 / 50, 1 / 50)},
)

"""A map over a picture, as it is sent to the browser."""

from __future__ import annotations

import io
from functools import partial

import torch
from matplotlib.figure import Figure

from benchmarks.benchmark import Benchmark, Case, Make, Run, Settings
from benchmarks.shapes import B_16
from vitviz import Geometry, Heatmap, Style, TokenMap, open_image
from vitviz.weights import resources

SIDE = 1024
VITVIZ = "vitviz, JPEG"
PATCHES, SMOOTH = f"{SIDE:,} px, patch by patch", f"{SIDE:,} px, smooth"


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    smooth = case.variant == SMOOTH
    return {
        "matplotlib, JPEG": partial(_matplotlib, smooth, jpeg=True),
        "matplotlib, as it saves a figure (PNG)": partial(_matplotlib, smooth),
        VITVIZ: partial(_vitviz, smooth),
    }


def _picture() -> Heatmap:
    image = open_image(resources("assets") / "astronaut.jpg").resize((SIDE, SIDE))
    values = torch.rand(14, 14, generator=torch.Generator().manual_seed(0))
    geometry = Geometry(SIDE, SIDE, (0.0, 0.0, float(SIDE), float(SIDE)), B_16.image, B_16.image)
    return Heatmap(TokenMap(values, {}, "attention weight", "random"), image, geometry)


def _matplotlib(smooth: bool, jpeg: bool = False) -> Run:
    picture = _picture()
    width, height = picture.image.size

    def run() -> bytes:
        figure, stream = Figure(figsize=(width / 100, height / 100), dpi=100), io.BytesIO()
        axes = figure.add_axes((0, 0, 1, 1))
        axes.axis("off")
        axes.imshow(picture.image)
        extent = (-0.5, width - 0.5, height - 0.5, -0.5)
        interpolation = "bilinear" if smooth else "nearest"
        axes.imshow(picture.values.numpy(), "turbo", alpha=0.6, extent=extent, interpolation=interpolation)
        figure.savefig(stream, **({"format": "jpeg", "pil_kwargs": {"quality": 90}} if jpeg else {}))
        return stream.getvalue()

    return run


def _vitviz(smooth: bool) -> Run:
    picture, style = _picture(), Style(smooth=smooth)
    return lambda: picture.overlay(style).save(io.BytesIO(), "JPEG", quality=90)


BENCHMARK = Benchmark(
    "overlay",
    "An overlay",
    "A map of 14×14 patches in colours over a photograph, as a JPEG of quality 90 in memory; by matplotlib also as it "
    "saves a figure if nothing else is said.",
    tuple(Case(B_16, 15, variant=variant) for variant in (PATCHES, SMOOTH)),
    contestants,
)

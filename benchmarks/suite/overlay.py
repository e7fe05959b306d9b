"""A map over a picture, as it is sent to the browser."""

from __future__ import annotations

import io
from functools import partial

import torch
from PIL import Image

from benchmarks.benchmark import Benchmark, Case, Make, Run, Settings
from benchmarks.others import matplotlib_overlay
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
    return partial(matplotlib_overlay, picture.image, picture.values.numpy(), smooth, jpeg)


def _vitviz(smooth: bool) -> Run:
    picture, style = _picture(), Style(smooth=smooth)
    return lambda: _jpeg(picture.overlay(style))


def _jpeg(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=90)
    return stream.getvalue()


BENCHMARK = Benchmark(
    "overlay",
    "An overlay",
    "A map of 14×14 patches in colours over a photograph, as a JPEG of quality 90 in memory; by matplotlib also as it "
    "saves a figure if nothing else is said.",
    tuple(Case(B_16, 15, variant=variant) for variant in (PATCHES, SMOOTH)),
    contestants,
    quick_cases=(0, 1),
)

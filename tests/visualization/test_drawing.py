"""Pictures are drawn the same whatever the user has set for pictures of their own, and show names to the letter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO

import matplotlib
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import vitviz
from tests.support.example import EXAMPLE
from vitviz import Analysis, Model, Style, open_image
from vitviz.evaluation.head_picture import heads_picture
from vitviz.evaluation.probes import probe
from vitviz.evaluation.probes.probe_figures import pictures
from vitviz.visualization import figure
from vitviz.visualization.drawing import own_settings

pytestmark = pytest.mark.slow

SETTINGS = {
    "image.origin": "lower",
    "image.cmap": "gray",
    "image.interpolation": "bicubic",
    "font.size": 20.0,
    "font.family": "STIXGeneral",
    "text.color": "white",
    "text.usetex": True,
    "axes.facecolor": "black",
    "axes.grid": True,
    "axes.labelsize": 30.0,
    "figure.facecolor": "black",
    "figure.autolayout": True,
    "savefig.bbox": "tight",
    "savefig.facecolor": "black",
    "savefig.transparent": True,
}
# What stands in a file of vectors, and what does not.
FONTS = {"pdf": (b"/CIDFontType2", b"/Type3"), "eps": (b"/FontType 42", b"/FontType 3"), "svg": (b"<text", b"<dc:date")}
# matplotlib's font for text lacks this sign; a family for formulas that it brings along has it.
SIGN, FAMILY = "Ⓐ", "STIXGeneral"


@pytest.fixture
def analysis(make_model: Callable[..., Model]) -> Analysis:
    return vitviz.analyze(open_image(EXAMPLE).resize((96, 64)), make_model())


def drawn(analysis: Analysis) -> list[bytes]:
    """Every kind of picture that matplotlib draws."""
    findings = pictures(probe(analysis, "attention_entropy"), analysis.trace.layout)
    heads = heads_picture({"entropy": torch.rand(2, 3, 4, generator=torch.Generator())})
    figures = analysis.attention(), analysis.attention_sheet(), *findings.values(), heads
    return [each._repr_png_() for each in figures]


def test_settings_of_the_user_change_no_picture(analysis: Analysis) -> None:
    before = drawn(analysis)
    assert len(before) > 3
    with matplotlib.rc_context(SETTINGS):
        assert drawn(analysis) == before
        assert matplotlib.rcParams["image.origin"] == "lower"


@pytest.mark.parametrize("kind", ["pdf", "svg", "eps"])
def test_whoever_writes_a_figure_its_fonts_are_those_of_journals(analysis: Analysis, kind: str) -> None:
    heatmap = analysis.attention()
    probes = pictures(probe(analysis, "attention_entropy"), analysis.trace.layout)
    own = [heatmap.figure(), figure([heatmap, heatmap]), analysis.attention_sheet().figure()]
    figures = [*own, *probes.values()]
    # Postscript has the fonts of a PDF, and takes longest.
    for each in figures if kind != "eps" else (figures[0], figures[-1]):
        # A layout of matplotlib's own moves a little each time, and Postscript has a date.
        files = [BytesIO() for _ in range(1 if kind == "eps" or each not in own else 2)]
        with matplotlib.rc_context(SETTINGS | {"text.usetex": False, "pdf.fonttype": 3, "ps.fonttype": 3}):
            for file in files:
                each.savefig(file, format=kind)
        [content] = {file.getvalue() for file in files}
        assert FONTS[kind][0] in content and FONTS[kind][1] not in content


def caption(model: Model, label: str) -> Figure:
    model = replace(model, labels=(label, *model.labels[1:]))
    return vitviz.analyze(EXAMPLE, model).map("relevance", target=0).figure()


@pytest.mark.parametrize("label", ["cost $5 to $10", "Ba$$in", r"$\undefined{$", "a_b^c {x}", "50% & more #1"])
def test_a_name_is_no_formula(label: str, make_model: Callable[..., Model]) -> None:
    figure = caption(make_model(), label)
    shown = " ".join(text.get_text() for text in figure.texts)
    assert label in shown and figure.png()
    assert not any(text.get_parse_math() for text in figure.texts)


def test_a_sign_is_drawn_by_an_installed_font_that_has_it(make_model: Callable[..., Model]) -> None:
    """A sign that no font has would be a warning, which is an error here."""
    caption(make_model(), f"class {SIGN}").png()
    with own_settings(SIGN):
        assert FAMILY in matplotlib.rcParams["font.family"]
    with own_settings("class"):
        assert matplotlib.rcParams["font.family"] == ["DejaVu Sans"]


def test_under_a_map_a_drained_picture_is_paler_and_darker(make_model: Callable[..., Model]) -> None:
    """As CSS has it: the colour mixed with its luminance, and then less bright."""
    red = Image.new("RGB", (64, 64), (250, 0, 0))
    heatmap = vitviz.analyze(red, make_model()).rollout()
    plain, drained = (heatmap.overlay(Style(opacity=0.0, drain=drain)).getpixel((8, 8)) for drain in (False, True))
    assert plain == (250, 0, 0)
    luminance = 0.213 * 250
    expected = [0.68 * (0.4 * value + 0.6 * luminance) for value in (250, 0, 0)]
    assert drained == pytest.approx(expected, abs=1)


def test_what_is_in_or_out_is_never_smooth(make_model: Callable[..., Model]) -> None:
    heatmap = vitviz.analyze(EXAMPLE, make_model()).attention_mass(mass=0.5)
    smooth, squares = (heatmap.overlay(Style(smooth=each)).tobytes() for each in (True, False))
    assert smooth == squares

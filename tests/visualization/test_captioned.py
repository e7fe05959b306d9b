"""A heatmap and a sheet as figures: the picture, its colours, the values at their ends, and the caption."""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

import vitviz
from tests.support.heatmaps import heatmap_over, noise
from tests.support.refusals import check_refusals
from vitviz import Analysis, ConfigError, Heatmap, MethodError, Style
from vitviz.visualization import Sheet
from vitviz.visualization.captioned import GAP_INCHES, LINE_INCHES
from vitviz.visualization.heatmaps import FIGURE_SIDE
from vitviz.visualization.panels import figure as figure_of

pytestmark = pytest.mark.slow


def heatmap(values: torch.Tensor, width: int = 90, height: int = 60) -> Heatmap:
    return heatmap_over(values, noise(width, height))


def check_apart(figure: Figure, parts: list[Any]) -> None:
    """Everything lies inside a figure, and nothing on another part."""
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    boxes = [each.get_window_extent(renderer) for each in parts]
    for number, box in enumerate(boxes):
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= -1 and box.y1 <= figure.bbox.y1 + 1
        assert not any(box.shrunk(0.98, 0.9).overlaps(other) for other in boxes[number + 1 :])


def texts(figure: Figure) -> list[str]:
    return [each.get_text() for each in figure.texts]


def picture_of(figure: Figure) -> np.ndarray:
    return np.asarray(figure.axes[0].images[0].get_array())


def bar_of(axes: Axes) -> np.ndarray:
    """The colours of a colour bar from its lower to its upper end, ``"value channel"`` in [0, 255]."""
    (parts,) = axes.collections
    return np.asarray(parts.get_facecolor())[:, :3] * 255


@pytest.mark.parametrize("style", [None, "viridis", Style(scale="robust", percentiles=(10, 60), smooth=True)])
def test_a_figure_shows_the_overlay_its_colours_and_the_values_at_their_ends(style: Style | str | None) -> None:
    picture_map = heatmap(torch.rand(4, 6, generator=torch.Generator().manual_seed(0)))
    figure, scale = picture_map.figure(style, mark=(1, 2)), picture_map.scale(style)
    assert np.array_equal(picture_of(figure), np.asarray(picture_map.overlay(style)))
    np.testing.assert_allclose(bar_of(figure.axes[1]), Style.of(style).colours().round())
    below, above = scale.beyond(picture_map.values)
    low, high = (f"{end:.3g}" for end in scale.ends)
    assert texts(figure)[:2] == [f"◄ {low}" if below else low, f"{high} ►" if above else high]
    assert " ".join(texts(figure)[2:]) == picture_map.caption(style)
    assert texts(heatmap(torch.tensor([[5.2001, 5.2003]])).figure(Style(scale="linear")))[:2] == ["5.2001", "5.2003"]


@pytest.mark.parametrize("size", [(900, 30), (30, 900), (2 * FIGURE_SIDE, FIGURE_SIDE)])
def test_nothing_of_a_figure_overlaps_or_is_cut_off(size: tuple[int, int]) -> None:
    figure = heatmap(torch.rand(2, 3), *size).figure()
    content = Image.open(BytesIO(heatmap(torch.rand(2, 3), *size)._repr_png_()))
    assert content.width == 640 and content.height <= 900
    check_apart(figure, [*figure.axes, *figure.texts])
    picture = figure.axes[0].get_window_extent(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    assert picture.width / picture.height == pytest.approx(size[0] / size[1], rel=0.02)


def test_a_wrong_style_of_a_figure_gets_one_sentence() -> None:
    calls = {
        "colormap 'red'": lambda: heatmap(torch.rand(2, 3)).figure("red"),
        r".*it is one of a style; expected style=vitviz\.Style": lambda: heatmap(torch.rand(2, 3)).figure(opacity=0.5),
    }
    check_refusals(MethodError, calls)


def test_a_sheet_is_the_list_of_its_maps_and_one_picture(coarse_example: Analysis) -> None:
    sheet, trace = coarse_example.attention_sheet(), coarse_example.trace
    assert isinstance(sheet, Sheet) and [len(row) for row in sheet] == [trace.heads] * trace.layers
    picture = Image.open(BytesIO(sheet._repr_png_()))
    assert picture.mode == "RGBA" and picture.size == sheet.picture().size
    assert np.array_equal(np.asarray(picture), np.asarray(sheet.picture()))
    shared = sheet.picture("gray", shared_scale=True, cell=40)
    assert shared.width < picture.width and shared.tobytes() != sheet.picture("gray", cell=40).tobytes()
    with pytest.raises(vitviz.QueryError, match="expected rows of one length"):
        Sheet().picture()


def test_a_part_of_a_sheet_has_the_numbers_of_its_layers_and_heads(coarse_example: Analysis) -> None:
    trace = coarse_example.trace
    part = coarse_example.attention_sheet((1, 2), "column", layers=[-1, 0], heads=range(2))
    again = pickle.loads(pickle.dumps(part))
    for sheet in (part, again):
        figure = sheet.figure()
        numbers = [text.get_text() for text in figure.axes[0].texts]
        assert numbers == ["head", "layer", str(trace.layers - 1), "0", "0", "1"]
        assert texts(figure)[2].startswith("Attention each patch pays to patch (1, 2): layers down, heads across.")


def test_panels_have_letters_names_and_what_is_not_switched_off() -> None:
    maps = [heatmap(torch.rand(4, 6)), heatmap(torch.rand(4, 6), 60, 90), heatmap(torch.rand(4, 6))]
    whole = figure_of(maps, marks=[None, (1, 2), None], names=["layer 0", 4, None], columns=2)
    assert [texts(part)[:2] for part in whole.subfigs[:2]] == [["a", "layer 0"], ["b", "4"]]
    assert [len(part.axes) for part in whole.subfigs] == [2, 2, 2, 0]
    check_apart(whole, [each for part in whole.subfigs for each in (*part.axes, *part.texts)])
    long = figure_of(maps, names=["a name of several words, longer than its picture is wide, " * 4] * 3)
    check_apart(long, [each for part in long.subfigs for each in (*part.axes, *part.texts)])
    plain = figure_of(maps[:2], "viridis", legend=False, caption=False)
    assert [texts(part) for part in plain.subfigs] == [["a"], ["b"]]
    assert [len(part.axes) for part in plain.subfigs] == [1, 1]
    assert plain.get_figheight() < whole.get_figheight()


@pytest.mark.parametrize("count", [1, 3])
def test_a_title_stands_above_all_panels_and_keeps_its_lines(count: int) -> None:
    maps = [heatmap(torch.rand(4, 6))] * count
    plain, titled = figure_of(maps, columns=2), figure_of(maps, columns=2, title="what is this\na cat")
    assert texts(titled) == ["what is this\na cat"]
    body = titled.subfigs[1]
    panels = body.subfigs if count > 1 else [body]
    check_apart(titled, [*titled.texts, *(each for part in panels for each in (*part.axes, *part.texts))])
    assert titled.get_figheight() == pytest.approx(plain.get_figheight() + 2 * LINE_INCHES + GAP_INCHES)
    assert figure_of(maps, title=" ").get_figheight() == figure_of(maps).get_figheight()
    with pytest.raises(ConfigError, match="title: 3 found; expected a str"):
        figure_of(maps, title=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), r"heatmaps: .* expected a list of 1 to 26 heatmaps"),
        (([np.ones((2, 3))],), r"expected a list of 1 to 26 heatmaps"),
        (([heatmap(torch.rand(2, 3))] * 30,), "heatmaps: list of 30, the first a Heatmap found; expected a list"),
        (([heatmap(torch.rand(2, 3))] * 2, None), "names: 1 for 2 heatmaps: expected one for each, or none"),
    ],
)
def test_no_figure_is_made_of_what_are_no_heatmaps(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(MethodError, match=message):
        figure_of(*arguments, names=["a"] * (len(arguments) == 2))  # type: ignore[arg-type]

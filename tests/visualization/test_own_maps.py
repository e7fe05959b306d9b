"""Maps of one's own, arithmetic of maps, colormaps of matplotlib's own, own axes and vectors."""

from __future__ import annotations

import base64
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image, ImageShow

from tests.support.heatmaps import heatmap_over, noise, token_map
from vitviz import Geometry, Heatmap, Style, TokenMap
from vitviz.errors.kinds import MethodError, QueryError
from vitviz.visualization.colormaps import colour_table

PICTURE = noise(60, 40)
VALUES = np.arange(6.0).reshape(2, 3)
JET = matplotlib.colormaps["jet"]


# An array of one's own.


@pytest.mark.parametrize(
    "array",
    [
        VALUES,
        VALUES.tolist(),
        VALUES.astype(int),
        VALUES.astype(">f4"),
        torch.from_numpy(VALUES).to(torch.float8_e4m3fn),
        torch.from_numpy(VALUES).requires_grad_(),
        torch.from_numpy(VALUES).half(),
        token_map(VALUES),
        heatmap_over(VALUES, noise(9, 9)),
    ],
)
def test_an_array_covers_the_whole_picture(array: Any) -> None:
    heatmap = Heatmap.of(array, PICTURE)
    assert heatmap.shape == (2, 3) and heatmap.geometry.box == (0, 0, 60, 40)
    assert np.array_equal(np.asarray(heatmap), VALUES) and not heatmap.values.requires_grad
    assert np.array_equal(np.asarray(heatmap.overlay()), np.asarray(heatmap_over(VALUES, PICTURE).overlay()))
    own = torch.zeros(2, 3)
    later = Heatmap.of(own, PICTURE)
    own += 1
    assert not later.values.any()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.arange(9.0), r"array of shape \(9,\): expected finite numbers 'row column'$"),
        (np.zeros((1, 2, 3)), r"array of shape \(1, 2, 3\): expected finite"),
        (np.zeros((0, 3)), r"array of shape \(0, 3\): expected"),
        ([[1.0], [2.0, 3.0]], "array: .* found; expected finite numbers"),
        (torch.eye(2).to_sparse(), "array: sparse_coo Tensor .* found; expected finite numbers"),
        (torch.eye(2, device="meta"), "array: meta Tensor .* found; expected finite numbers"),
        ("rollout", "array: 'rollout' found; expected finite numbers"),
        (None, "array: None found; expected finite numbers"),
        (np.ma.masked_equal([[1.0, 2.0]], 2), "array: some of its values are masked; expected finite numbers"),
        ([[1.0, np.nan]], r"array of shape \(1, 2\): not all values are finite"),
    ],
)
def test_what_is_no_grid_of_numbers_is_refused(array: Any, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        Heatmap.of(array, PICTURE)


def test_values_are_had_by_row_and_column() -> None:
    heatmap = Heatmap.of(VALUES, PICTURE)
    assert heatmap[1, 2] == 5 and heatmap[-1].tolist() == [3, 4, 5] and heatmap[:, 0].tolist() == [0, 3]


# Arithmetic.


def test_maps_are_added_and_scaled_with_the_numbers_of_their_values() -> None:
    unsigned = TokenMap(torch.arange(6.0).reshape(2, 3), {"cls": 0.5}, "share", "One", (0.0, 8.0))
    one, two = Heatmap.of(unsigned, PICTURE), Heatmap.of(VALUES[::-1].copy(), PICTURE)
    mean = sum([one, two], np.int64(0)) / 2
    assert np.array_equal(mean, (VALUES + VALUES[::-1]) / 2)
    assert mean.description.startswith("0.5 × (One; plus: Values of an array)")
    for found, values, prefix, domain, signed in (
        (one * 2, 2 * VALUES, 1.0, (0.0, 16.0), False),
        (2 * one, 2 * VALUES, 1.0, (0.0, 16.0), False),
        (np.float64(2) * one, 2 * VALUES, 1.0, (0.0, 16.0), False),
        (-one, -VALUES, -0.5, (-8.0, 0.0), True),
        (abs(-one / 4), VALUES / 4, 0.125, (0.0, 2.0), False),
        (abs(one - 2 * one), VALUES, 0.5, (0.0, 16.0), False),
    ):
        assert np.array_equal(found, values) and found.token_map.prefix == {"cls": prefix}
        assert (found.token_map.domain, found.token_map.signed) == (domain, signed)
    assert abs(one - (one - 2 * one)).description == "absolute value of (One; minus: (One; minus: 2 × (One)))"


@pytest.mark.parametrize(
    "wrong",
    [
        *(lambda a: a * a, lambda a: a / 0, lambda a: a * True, lambda a: 1 + a, lambda a: a > 0.5),
        *(lambda a: 1 - a, lambda a: 1 / a, lambda a: a**2, lambda a: 2**a, lambda a: np.float64(1) - a),
    ],
)
def test_other_arithmetic_says_where_the_numbers_are(wrong: Callable[[Heatmap], Any]) -> None:
    with pytest.raises(MethodError, match=r"heatmap.values are its numbers"):
        wrong(Heatmap.of(VALUES, PICTURE))


def test_a_difference_is_a_signed_map_with_zero_in_the_middle() -> None:
    one, two = Heatmap.of(VALUES, PICTURE), Heatmap.of(VALUES[::-1].copy(), PICTURE)
    found = one - two
    assert np.array_equal(np.asarray(found), VALUES - VALUES[::-1]) and found.token_map.signed
    low, high = found.scale().ends
    assert low == -high
    # The default colours are grey in the middle; a colormap that is asked for stays.
    assert np.array_equal(Style().colours(signed=True), colour_table(matplotlib.colormaps["coolwarm"]))
    assert np.array_equal(Style("viridis").colours(signed=True), colour_table("viridis"))
    assert found.description == "Values of an array; minus: Values of an array"
    assert (found.token_map.quantity, found.token_map.domain) == ("difference of the value", (-np.inf, np.inf))


def test_a_difference_names_its_quantities_and_keeps_shared_prefix_tokens() -> None:
    one = TokenMap(torch.ones(2, 3), {"cls": 0.75, "register 1": 0.5}, "share", "One", (0.0, 1.0))
    two = TokenMap(torch.zeros(2, 3), {"cls": 0.25}, "weight", "Two", (0.0, 2.0))
    found = (Heatmap.of(one, PICTURE) - Heatmap.of(two, PICTURE.copy())).token_map
    assert (found.prefix, found.quantity, found.domain) == (
        {"cls": 0.5},
        "difference of the share and weight",
        (-2.0, 1.0),
    )


def of(model: str, weights: bytes = b"", text: str = "Rollout") -> Heatmap:
    """A map of a model."""
    token_map = TokenMap(torch.arange(6.0).reshape(2, 3), {}, "share", text)
    return replace(Heatmap.of(token_map, PICTURE), model=model, weights=weights)


def test_arithmetic_names_every_model_where_there_are_several() -> None:
    a, b, c, own = of("a"), of("b", text="Attention"), of("c"), Heatmap.of(VALUES, PICTURE)
    flat = Heatmap.of(0 * VALUES + 5, PICTURE)
    for found, description in (
        (a - 2 * b, "a: Rollout; minus b: 2 × (Attention)"),
        (a + b + c, "a: Rollout; plus b: Attention; plus c: Rollout"),
        (sum([a, b, c]) / 4, "0.25 × (a: Rollout; plus b: Attention; plus c: Rollout)"),
        (abs(a - 2 * b), "absolute value of (a: Rollout; minus b: 2 × (Attention))"),
        (c - (a - 2 * b), "c: Rollout; minus: (a: Rollout; minus b: 2 × (Attention))"),
        (c + (a - 3 * b), "c: Rollout; plus: (a: Rollout; minus b: 3 × (Attention))"),
        (a + 2 * a - b, "a: (Rollout; plus: 2 × (Rollout)); minus b: Attention"),
        (a - 2 * own, "a: Rollout; minus: 2 × (Values of an array)"),
        (own - 2 * a, "Values of an array; minus a: 2 × (Rollout)"),
        (a - 3 * of("a"), "Rollout; minus: 3 × (Rollout)"),
        (own - flat, "Values of an array; minus: (Values of an array. Every patch is 5)"),
        (flat + own, "(Values of an array. Every patch is 5); plus: Values of an array"),
        (of("a", b"1") - 2 * of("a", b"2"), "a: Rollout; minus a with other weights: 2 × (Rollout)"),
    ):
        assert found.description == description
        assert " ".join(text.get_text() for text in found.figure().texts[2:]) == found.caption()


def cropped() -> Heatmap:
    return Heatmap(token_map(VALUES), PICTURE, Geometry(60, 40, (10.0, 0.0, 50.0, 40.0), 8, 8))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Heatmap.of(VALUES.T.copy(), PICTURE), "two grids, 2×3 patches and 3×2 patches: expected one"),
        (Heatmap.of(VALUES, noise(61, 40)), "two pictures, 60×40 pixels and 61×40 pixels: expected one"),
        (Heatmap.of(VALUES, Image.new("RGB", (60, 40))), "two pictures of one size: expected maps on one picture"),
        (cropped(), r"two parts of the picture, \(0.0, 0.0, 60.0, 40.0\) and \(10.0, 0.0, 50.0, 40.0\)"),
        (VALUES, "a heatmap minus ndarray .*: expected another heatmap; heatmap.values are its numbers"),
    ],
)
def test_only_maps_on_one_picture_and_grid_are_subtracted(other: Any, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        Heatmap.of(VALUES, PICTURE) - other


def test_a_colormap_of_matplotlibs_own_goes_in_as_an_object() -> None:
    heatmap = Heatmap.of(VALUES, PICTURE)
    overlay = np.asarray(heatmap.overlay(Style(JET, opacity=1.0, scale="linear")))
    assert np.array_equal(overlay[0, 0], (np.array(JET(0)[:3]) * 255).round())
    assert heatmap.overlay(JET) == heatmap.overlay(Style(JET))
    assert heatmap.caption(JET).endswith("Colours of matplotlib's jet.") and "matplotlib" not in heatmap.caption()
    assert pickle.loads(pickle.dumps(Style(JET))) == Style(JET) != Style(matplotlib.colormaps["hot"])


# Own axes.


def test_own_axes_get_the_map_its_grid_mark_and_colour_bar() -> None:
    heatmap, figure = Heatmap.of(VALUES, PICTURE), Figure()
    left, right = figure.subplots(1, 2)
    with matplotlib.rc_context({"image.origin": "lower", "image.aspect": "auto"}):
        assert heatmap.figure(Style(grid=True), mark=(1, 2), ax=right) is figure
    assert right.images[0].origin == "upper" and right.get_aspect() == 1
    assert np.array_equal(np.asarray(right.images[0].get_array()), np.asarray(heatmap.overlay()))
    assert not left.images and right.get_xlim() == (0, 60) and right.get_ylim() == (40, 0)
    lines = [line.tolist() for line in right.collections[0].get_segments()]
    assert len(lines) == 3 + 4 and [[0, 20], [60, 20]] in lines and [[40, 0], [40, 40]] in lines
    # At a border of the picture, the frame lies inside it.
    assert right.patches[0].get_bbox().extents.tolist() == [40, 20, 58, 38]
    assert [[text.get_text() for text in bar.texts] for bar in right.child_axes] == [["0", "5"]]
    below = figure.subfigures().subplots()
    assert Heatmap.of(VALUES, PICTURE.rotate(90, expand=True)).figure(ax=below) is figure
    assert [text.get_text() for text in below.child_axes[0].texts] == ["0", "\n5"]
    with pytest.raises(MethodError, match=r"ax: ndarray of .* found; expected an Axes, such as axes\[0\] gives"):
        heatmap.figure(ax=np.array([left, right]))


def test_a_mark_on_a_missing_patch_is_refused_in_own_axes() -> None:
    with pytest.raises(QueryError, match=r"mark \(5, 5\): this map has patches \(0, 0\) to \(1, 2\)"):
        Heatmap.of(VALUES, PICTURE).figure(mark=(5, 5), ax=Figure().subplots())


@pytest.mark.slow
def test_svg_has_text_as_text_and_grid_mark_and_bar_as_vectors(tmp_path: Path) -> None:
    heatmap = Heatmap.of(VALUES, PICTURE)
    for name in ("one.svg", "two.svg"):
        heatmap.save(tmp_path / name, Style(grid=True), mark=(0, 1))
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    root = ElementTree.parse(tmp_path / "one.svg").getroot()
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    texts = [element.text for element in root.iter() if element.tag.endswith("}text")]
    assert tags.count("image") == 1 and texts == ["0", "5", "Values of an array"]
    # 256 colours of the bar, and the borders of 2 rows and 3 columns.
    assert tags.count("path") >= 256 + 3 + 4


# The screen.


def test_show_opens_the_viewer_of_pictures_or_says_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Image.Image] = []
    monkeypatch.setattr(ImageShow, "show", lambda image: shown.append(image) or True)
    Heatmap.of(VALUES, PICTURE).show(JET, mark=(0, 0))
    assert shown[0].width == 640
    monkeypatch.setattr(ImageShow, "show", lambda image: False)
    with pytest.warns(UserWarning, match=r"no viewer of pictures found; heatmap.save\('map.png'\) writes a file"):
        Heatmap.of(VALUES, PICTURE).show()


def test_show_in_a_notebook_is_below_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[dict[str, str]] = []
    shell = SimpleNamespace(kernel=None, display_pub=SimpleNamespace(publish=published.append))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    heatmap = Heatmap.of(VALUES, PICTURE)
    heatmap.show()
    assert base64.b64decode(published[0]["image/png"]) == heatmap._repr_png_()

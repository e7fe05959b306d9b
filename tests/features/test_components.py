"""Components are those of the singular values, and their colours are those of the recipe."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.example import ASSETS
from tests.support.makers import MakeModel
from tests.support.modules import OwnViT, load_own
from tests.support.probes import near, with_outliers
from vitviz import Analysis, ConfigError, ImageError, MethodError, analyze, components
from vitviz.features import Basis
from vitviz.features.colour_maps import component_colours


def noise(seed: int, width: int = 60, height: int = 48) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def pair_of(make_model: MakeModel, **changes: Any) -> list[Analysis]:
    """Two pictures whose grids differ."""
    model = make_model(**changes)
    return [analyze(noise(0), model), analyze(noise(1, 30, 70), model, fit="native")]


def recipe(pictures: list[np.ndarray], has_background: bool) -> list[np.ndarray]:
    """Colours ``"row column channel"`` of tokens ``"row column channel"``: DINOv2's recipe in OKLab, once more."""
    pictures = [each / np.linalg.norm(each, axis=-1, keepdims=True) for each in map(np.float64, pictures)]
    patches = np.concatenate([each.reshape(-1, each.shape[-1]) for each in pictures])
    masks = [np.full(each.shape[:2], True) for each in pictures]

    def fitted(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        directions = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)[2][:3].T
        return vectors.mean(0), directions * np.sign(directions[np.abs(directions).argmax(0), range(3)])

    if has_background:
        mean, directions = fitted(patches)
        firsts = [(each - mean) @ directions[:, 0] for each in pictures]
        border = [np.concatenate([each[0], each[-1], each[1:-1, 0], each[1:-1, -1]]) for each in firsts]
        side = -1 if (np.concatenate(border) > 0).sum() * 2 > len(np.concatenate(border)) else 1
        masks = [each * side > 0 for each in firsts]
        patches = np.concatenate([each[mask] for each, mask in zip(pictures, masks, strict=True)])
    mean, directions = fitted(patches)
    low, high = np.percentile((patches - mean) @ directions, [1, 99], axis=0)
    drawn = []
    for each, mask in zip(pictures, masks, strict=True):
        z = np.clip(((each - mean) @ directions - low) / (high - low), 0, 1)
        light, a, b = 0.42 + 0.44 * z[..., 2], 0.42 * (z[..., 0] - 0.5), 0.40 * (z[..., 1] - 0.5)
        long = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3
        middle = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3
        short = (light - 0.0894841775 * a - 1.2914855480 * b) ** 3
        red = 4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short
        green = -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short
        blue = -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short
        linear = np.clip(np.stack([red, green, blue], -1), 0, 1)
        gamma = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
        drawn.append(gamma * mask[..., None])
    return drawn


@pytest.mark.parametrize("of", ["tokens", "keys", "values"])
def test_components_are_those_of_the_singular_values(make_model: MakeModel, of: Any) -> None:
    analyses = pair_of(make_model, register_tokens=2)
    maps = components(analyses, 1, of=of, count=5)
    vectors = np.concatenate([each.features(1, of).unit[3:].double().numpy() for each in analyses])
    _, sizes, directions = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    signs = np.sign(directions[range(5), np.abs(directions[:5]).argmax(1)])
    expected = (vectors - vectors.mean(0)) @ (directions[:5].T * signs)
    found = np.concatenate([each.values.reshape(-1, 5).numpy() for each in maps])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(maps.basis.shares.numpy(), (sizes**2 / (sizes**2).sum())[:5], atol=1e-6)
    grids = [(layout.grid_height, layout.grid_width) for layout in (each.trace.layout for each in analyses)]
    assert [each.values.shape[:2] for each in maps] == grids and grids[0] != grids[1]
    assert maps[0].layer == maps[1].layer == 1


@pytest.mark.parametrize("foreground", [False, True])
@pytest.mark.parametrize("engine", ["own", "watched", "bundled"])
def test_colours_are_those_of_the_recipe(make_model: MakeModel, bundled: Any, engine: str, foreground: bool) -> None:
    model = {"own": make_model(), "watched": load_own(OwnViT("written out")), "bundled": bundled}[engine]
    photographs = [ASSETS / "chelsea.jpg", ASSETS / "astronaut.jpg"]
    analyses = [analyze(each, model) for each in (photographs if engine == "bundled" else map(noise, range(3)))]
    maps, vectors = components(analyses, 2, foreground=foreground), [np.asarray(each.features(2)) for each in analyses]
    for found, expected in zip(maps, recipe(vectors, foreground), strict=True):
        np.testing.assert_allclose(found.colours.numpy(), expected, atol=1e-4 if engine == "bundled" else 1e-5)
    black = torch.cat([each.colours.flatten(0, 1) for each in maps]).sum(-1) == 0
    assert bool(black.any()) == foreground and not black.all()


def test_the_foreground_is_the_side_that_is_less_at_the_border() -> None:
    grid = torch.zeros(6, 6, 4) + torch.tensor([0.0, 0.0, 1.0, 0.0])
    grid[2:4, 2:4] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    # The side does not depend on which of the two is positive.
    for pictures in ([grid], [grid.flip(-1)], [grid, grid[1:-1]]):
        patches = torch.cat([each.flatten(0, 1) for each in pictures])
        first = Basis.of(patches, 1).seen_from(pictures)
        for each in pictures:
            edge = (len(each) - 2) // 2
            inside = first.project(each)[..., 0] > 0
            assert inside.sum() == 4 and inside[edge : edge + 2, 2:4].all()


def test_prefix_tokens_and_outliers_have_no_part_in_the_basis(make_model: MakeModel) -> None:
    [analysis, _] = pair_of(make_model)
    outlying = with_outliers(analysis)
    [found] = components(outlying, 1)
    kept = [token for token in range(1, 25) if token not in (4, 9)]
    vectors = outlying.features(1).unit.double()
    basis = Basis.of(vectors[kept], 3)
    near(found.values.flatten(0, 1), basis.project(vectors[1:]).numpy(), 1e-9)


def test_an_earlier_basis_gives_the_same_patch_the_same_colour(make_model: MakeModel) -> None:
    [first, second] = pair_of(make_model)
    maps = components([first, second], 1, foreground=True)
    later = components([second], 1, basis=maps.basis)
    assert torch.equal(later[0].colours, maps[1].colours) and later.basis is maps.basis
    for model, layer in ((make_model(heads=6), 1), (make_model(), 1), (first.model, 0)):
        with pytest.raises(MethodError, match="basis: of other vectors; expected one of the"):
            components(analyze(noise(0), model), layer, of="keys", basis=maps.basis)
    with pytest.raises(ConfigError, match=r"basis: 3 found; expected a Basis, such as maps.basis gives"):
        components(first, 1, basis=3)


def test_a_constant_picture_has_one_colour(make_model: MakeModel) -> None:
    model = make_model()
    with torch.no_grad():
        model.network.positions.zero_()
    analysis = analyze(Image.new("RGB", (60, 48), "teal"), model)
    [found] = components(analysis, 1)
    near(found.colours, found.colours[:1, :1].expand(4, 6, 3).numpy(), 1e-5)
    near(found.colours[0, 0], component_colours(torch.full((3,), 0.5)).numpy(), 1e-5)


def test_a_model_of_one_patch_has_one_colour(make_model: MakeModel) -> None:
    [found] = components(analyze(noise(0), make_model(image_height=4, image_width=4)), 0)
    assert found.colours.shape == (1, 1, 3) and found.colours.isfinite().all()
    with pytest.raises(MethodError, match=r"foreground: no patch stands out from the others"):
        components(analyze(noise(0), make_model(image_height=4, image_width=4)), 0, foreground=True)


def test_fewer_components_leave_the_rest_in_the_middle(make_model: MakeModel) -> None:
    [analysis, _] = pair_of(make_model)
    two, three = components(analysis, 1, count=2), components(analysis, 1)
    places = three.basis.place(three[0].values)
    near(two[0].colours, component_colours(torch.cat([places[..., :2], torch.full((4, 6, 1), 0.5)], -1)).numpy(), 1e-5)
    assert ", 1 component holds " in components(analysis, 1, count=1)[0].description
    near(components(analysis, 1, count=7)[0].colours, three[0].colours.numpy(), 1e-5)
    for count, expected in ((33, "at most 32"), (0, "a whole number"), (2.5, "a whole number")):
        with pytest.raises(MethodError, match=f"count = {count}: expected {expected}"):
            components(analysis, 1, count=count)


def test_colours_are_even_and_on_the_screen() -> None:
    # Grey has no hue, and its light is the cube of its lightness.
    grey = component_colours(torch.tensor([0.5, 0.5, 0.0]))
    assert grey.std() < 1e-4 and float(grey[0]) == pytest.approx(1.055 * 0.42 ** (3 / 2.4) - 0.055, abs=1e-4)
    red, green = component_colours(torch.tensor([[1.0, 0.5, 0.5], [0.0, 0.5, 0.5]]))
    assert red.argmax() == 0 and green.argmax() == 1
    yellow, blue = component_colours(torch.tensor([[0.5, 1.0, 0.5], [0.5, 0.0, 0.5]]))
    assert yellow.argmin() == 2 and blue.argmax() == 2
    everything = component_colours(torch.rand(1000, 3))
    assert everything.min() >= 0 and everything.max() <= 1


def test_colours_lie_on_the_patches_of_the_picture(make_model: MakeModel) -> None:
    model = make_model(fit="crop")
    analysis = analyze(noise(0, 90, 48), model)
    [found] = components(analysis, 1)
    squares, geometry = np.asarray(found.overlay(smooth=False)), found.geometry
    assert squares.shape == (48, 90, 3)
    for row, column in np.ndindex(4, 6):
        left, top, right, bottom = geometry.patch_rectangle(row, column, 4, 6)
        inside = squares[int(np.ceil(top)) : int(bottom), int(np.ceil(left)) : int(right)]
        expected = (found.colours[row, column] * 255).round().numpy()
        assert inside.size and (np.abs(inside - expected) <= 1).all()
    # Outside of the model's input, the picture is dim.
    outside = np.asarray(found.image)[:, : int(geometry.box[0])]
    assert outside.size and np.abs(squares[:, : outside.shape[1]] - 0.35 * outside).max() <= 0.5
    half = np.asarray(found.overlay(0.5, smooth=False), float)[20, 40]
    assert np.abs(half - (squares[20, 40] / 2 + np.asarray(found.image)[20, 40] / 2)).max() <= 1
    # In the middle of a patch, smooth colours are its own, but for what the neighbours' curve adds.
    smooth = np.asarray(found.overlay(), float)
    assert len(np.unique(smooth.reshape(-1, 3), axis=0)) > len(np.unique(squares.reshape(-1, 3), axis=0))


def test_results_are_saved_and_shown(make_model: MakeModel, tmp_path: Path) -> None:
    maps = components(pair_of(make_model), 1)
    maps.save(tmp_path / "both.png", smooth=False)
    with Image.open(tmp_path / "both.png") as both:
        assert both.size == (round(60 * 70 / 48) + 12 + 30, 70)
        near(torch.tensor(both.getpixel((0, 0))), (maps[0].colours[0, 0] * 255).round().numpy(), 1)
        near(torch.tensor(both.getpixel((both.width - 1, 69))), (maps[1].colours[-1, -1] * 255).round().numpy(), 1)
    maps[0].save(tmp_path / "one.webp", 0.5)
    with Image.open(tmp_path / "one.webp") as one:
        assert one.size == (60, 48)
    maps[0].save(tmp_path / "one.svg")
    assert b"<svg" in (tmp_path / "one.svg").read_bytes()
    part = maps[1:]
    assert part.basis is maps.basis and part.overlay().size == (30, 70) and not maps[2:] and part.description
    for each in (maps, maps[0]):
        assert Image.open(BytesIO(each._repr_png_())).width == 640
    assert "which colour means nothing" in repr(maps[0]) and "hold" in maps.description
    with pytest.raises(MethodError, match=r"opacity = 2: expected a number in \[0, 1\]"):
        maps[0].overlay(2)
    with pytest.raises(ImageError, match=r"one\.xyz: cannot be written"):
        maps[0].save(tmp_path / "one.xyz")


def test_what_cannot_be_compared_is_refused(make_model: MakeModel) -> None:
    [analysis, _] = pair_of(make_model)
    other = analyze(noise(0), make_model(width=48))
    expected = r"analyses by 'small' \(width 32\) and 'small' \(width 48\): vectors of one model alone can be compared"
    with pytest.raises(MethodError, match=expected):
        components([analysis, other], 1)
    with pytest.raises(MethodError, match=r"\(width 32\) and 'small' \(width 32\): vectors of one model alone"):
        components([analysis, analyze(noise(0), make_model())], 1)
    # A model that is opened twice is the same.
    again = replace(analysis.model, network=type(analysis.model.network)(analysis.model.network.config).eval())
    again.network.load_state_dict(analysis.model.network.state_dict())
    assert len(components([analysis, analyze(noise(1), again)], 1)) == 2
    for wrong in ([], "cat.jpg", 3, [analysis, "cat.jpg"], analysis.trace):
        with pytest.raises(ConfigError, match=r" found; expected analyses, such as \[vitviz.analyze\(image, model\)\]"):
            components(wrong, 1)

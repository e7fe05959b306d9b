"""The share of a map inside a region, against sums over pixels; and regions that are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import vitviz
from vitviz import Heatmap, ImageError, MethodError, Model, TokenMap
from vitviz.images import decoding, file_kinds
from vitviz.images.geometry import Geometry
from vitviz.images.image_facts import ImageFacts
from vitviz.visualization.regions import patch_shares

WIDTH, HEIGHT = 96, 64
BOX = (20, 10, 71, 51)


def disc() -> np.ndarray:
    mask = Image.new("L", (WIDTH, HEIGHT))
    ImageDraw.Draw(mask).ellipse((20, 10, 70, 50), fill=255)
    return np.asarray(mask) > 0


MASK = disc()


@pytest.fixture
def heatmap() -> Heatmap:
    values = np.random.default_rng(0).random((4, 6))
    return Heatmap.of(values, np.zeros((HEIGHT, WIDTH, 3), np.uint8))


def by_hand(heatmap: Heatmap, mask: np.ndarray) -> float:
    pixels = np.nan_to_num(heatmap.pixels().astype(float))
    return float((pixels * mask).sum() / pixels.sum())


def box_mask(box: tuple[int, int, int, int]) -> np.ndarray:
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[box[1] : box[3], box[0] : box[2]] = True
    return mask


def test_shares_of_patches_are_the_means_of_their_pixels() -> None:
    mask = MASK
    assert np.allclose(patch_shares(mask, (0, 0, 96, 64), 4, 6), mask.reshape(4, 16, 6, 16).mean((1, 3)))
    cropped = patch_shares(mask, (16, 0, 80, 64), 4, 4)
    assert np.allclose(cropped, mask[:, 16:80].reshape(4, 16, 4, 16).mean((1, 3)))
    # Half of a pixel counts half.
    halves = patch_shares(mask, (0.5, 0, 64.5, 64), 1, 1)
    assert float(halves) == pytest.approx((mask[:, :65].mean(0) * np.r_[0.5, np.ones(63), 0.5]).sum() / 64)


def test_the_share_is_that_of_the_pixels(heatmap: Heatmap, tmp_path: Path) -> None:
    expected = pytest.approx(by_hand(heatmap, MASK))
    Image.fromarray(MASK).save(tmp_path / "mask.png")
    small_label, red = MASK.astype(np.uint16), np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    red[MASK, 0] = 200
    Image.fromarray(small_label).save(tmp_path / "16 bits.png")
    palette = Image.fromarray(MASK.astype(np.uint8)).convert("P")
    palette.putpalette([0, 0, 0, 128, 0, 0])
    twice = Image.fromarray(MASK).resize((2 * WIDTH, 2 * HEIGHT), Image.Resampling.NEAREST)
    for mask in (MASK, MASK.tolist(), MASK * 0.5, torch.from_numpy(MASK), Image.fromarray(red), palette, twice):
        assert heatmap.share_inside(mask) == expected
    assert (
        heatmap.share_inside(tmp_path / "mask.png") == heatmap.share_inside(str(tmp_path / "16 bits.png")) == expected
    )
    for box in (BOX, list(BOX), np.array(BOX), torch.tensor(BOX)):
        assert heatmap.share_inside(box) == pytest.approx(by_hand(heatmap, box_mask(BOX)))
    assert heatmap.share_inside((0, 0, WIDTH, HEIGHT)) == heatmap.share_inside(MASK | True) == pytest.approx(1)
    # Half of a pixel counts half.
    whole, more = (heatmap.share_inside((20, 10, right, 51)) for right in (70, 71))
    assert whole is not None and more is not None
    assert heatmap.share_inside((20, 10, 70.5, 51)) == pytest.approx((whole + more) / 2)


def test_smoothed_edges_are_inside_from_half_of_white_on(tmp_path: Path) -> None:
    heatmap = Heatmap.of(np.random.default_rng(0).random((6, 6)), np.zeros((480, 480, 3), np.uint8))
    mask = Image.new("L", (480, 480))
    ImageDraw.Draw(mask).ellipse((101, 52, 300, 407), fill=255)
    mask.save(tmp_path / "mask.jpg", quality=60)
    small = mask.resize((240, 240), Image.Resampling.BICUBIC)
    expected = by_hand(heatmap, np.asarray(mask) > 0)
    for smoothed in (tmp_path / "mask.jpg", small):
        assert heatmap.share_inside(smoothed) == pytest.approx(expected, abs=1e-3)


def test_only_what_the_model_sees_counts(make_model: Callable[..., Model]) -> None:
    picture = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    heatmap = vitviz.analyze(picture, make_model(fit="crop", image_width=16)).rollout()
    left, _, right, _ = heatmap.geometry.box
    assert 0 < left < right < WIDTH
    assert heatmap.share_inside(MASK) == pytest.approx(by_hand(heatmap, MASK))
    assert heatmap.share_inside((0, 0, left, HEIGHT)) == 0


def test_a_box_has_the_pixels_of_a_file_that_was_reduced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values, picture = np.random.default_rng(0).random((4, 6)), Image.new("RGB", (WIDTH, HEIGHT))
    picture.save(tmp_path / "large.jpg")
    whole = Heatmap.of(values, picture)
    for module in (file_kinds, decoding):
        monkeypatch.setattr(module, "MAX_PIXELS", 5000)
    heatmap = Heatmap.of(values, tmp_path / "large.jpg")
    assert heatmap.image.size == (WIDTH // 2, HEIGHT // 2)
    assert heatmap.share_inside(BOX) == whole.share_inside(BOX)
    assert heatmap.share_inside(MASK) == whole.share_inside(MASK)


def test_a_map_of_zeros_has_no_share_and_a_signed_one_is_refused(heatmap: Heatmap) -> None:
    assert Heatmap.of(np.zeros((4, 6)), heatmap.image).share_inside(MASK) is None
    with pytest.raises(MethodError, match="a signed map has no share inside a region"):
        (heatmap - heatmap).share_inside(MASK)


LABELS = MASK * 7 + 1
GRADIENT = np.tile(np.arange(WIDTH, dtype=np.uint8), (HEIGHT, 1))
CLEAR = Image.new("RGBA", (WIDTH, HEIGHT), (255, 0, 0, 9))


@pytest.mark.parametrize(
    ("region", "message"),
    [
        (MASK * 15 + (np.arange(WIDTH) > 90) * 255, "3 values from 0 to 255, as of a label map"),
        (LABELS, "its values are 1 and 8; expected 0 outside"),
        (GRADIENT, "96 values from 0 to 95, as of a label map or a photograph"),
        (Image.fromarray(np.dstack([GRADIENT, GRADIENT, 0 * GRADIENT])), "several colours"),
        (CLEAR, "transparent pixels"),
        (MASK[:, :60], "mask of 60×64 pixels: expected the proportions of the picture, 96×64"),
        (np.zeros((3, HEIGHT, WIDTH)), r"ndarray of shape \(3, 64, 96\) found; expected a mask 'height width'"),
        (MASK * np.nan, "not all values are finite"),
        ("none.png", "none.png: cannot be read .no such file in "),
        (None, "expected a mask"),
        ((10, 10, 97, 20), r"box \(10, 10, 97, 20\): expected a rectangle inside the picture of 96×64 pixels"),
        ((10, 10, 10, 20), "expected a rectangle inside"),
        ((10, 10, 20), "expected a mask .* or a box"),
    ],
)
def test_what_is_no_region_of_the_picture_is_refused(heatmap: Heatmap, region: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        heatmap.share_inside(region)


def test_a_region_of_a_picture_that_a_function_made_is_refused() -> None:
    shown = Image.new("RGB", (48, 48), "red")
    ImageFacts((), (60, 40), (48, 48), is_input=True).keep(shown)
    heatmap = Heatmap(TokenMap(torch.ones(6, 6), {}, "share", ""), shown, Geometry(48, 48, (0, 0, 48, 48), 48, 48))
    for region in ((0, 0, 20, 20), np.ones((48, 48)), np.ones((40, 60))):
        with pytest.raises(ImageError, match=r"nobody says what part of the picture .*box="):
            heatmap.share_inside(region)

"""The share of each map inside a mask or box, in the table of a batch."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitviz
from tests.datasets.batches import rows
from tests.support.refusals import check_refusals
from vitviz import ConfigError, Model, VitvizError
from vitviz.cli.batching import _print
from vitviz.cli.parsing import parse
from vitviz.datasets import NUMBERS, BatchRequest, MapRequest, read_items, rows_of, run_batch, work
from vitviz.datasets.masks import mask_of

MAPS = (MapRequest("rollout"), MapRequest("attention", {"layer": -1}))
BOX = (10, 4, 35, 20)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Pictures with masks, all but one; one mask is that of another picture."""
    rng = np.random.default_rng(0)
    for name in ("a.jpg", "deep/b.png", "c.d.png", "none.png", "wrong.png"):
        for folder in ("photos", "masks"):
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (40, 60, 3), np.uint8)).save(tmp_path / "photos" / name)
        mask = np.zeros((40, 60 if name != "wrong.png" else 20), np.uint8)
        mask[4:20, 10:35] = 255
        if name != "none.png":
            Image.fromarray(mask).save((tmp_path / "masks" / name).with_suffix(".TIF"))
    return tmp_path / "photos"


def test_the_share_is_that_of_the_library(
    make_model: Callable[..., Model], pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(fit="crop", image_width=16)
    request = BatchRequest(model, MAPS, masks=tmp_path / "masks")
    items = read_items(str(pictures))
    summary = run_batch(request, items, tmp_path / "out", writers=[NUMBERS])
    assert sorted(path.name[0] for path in (tmp_path / "out" / NUMBERS.folder).rglob("*.npz")) == ["a", "b", "c", "n"]
    found = rows(tmp_path / "out")
    mask = np.pad(np.ones((16, 25)), ((4, 20), (10, 25)))
    for name in ("a.jpg", "deep/b.png", "c.d.png"):
        analysis = vitviz.analyze(pictures / name, model)
        for each in MAPS:
            pixels = np.nan_to_num(analysis.map(each.method, **each.parameters).pixels())
            by_hand = (pixels * mask).sum() / pixels.sum()
            assert found[name][f"{each.name}.inside"] == pytest.approx(by_hand, abs=1e-6)
        # The crop shows columns 10 to 50.
        assert found[name]["inside.area"] == pytest.approx(16 * 25 / 40**2)
    assert found["none.png"]["rollout.inside"] is found["none.png"]["inside.area"] is None
    assert "mask of 20×40 pixels: expected the proportions" in found["wrong.png"]["error"]
    assert (summary.analysed, summary.failed, summary.unmasked) == (4, 1, 1)
    _print(summary, tmp_path / "out")
    assert "masks: 1 of 4 pictures have none" in capsys.readouterr().out
    analyses = [vitviz.analyze(pictures / name, model) for name in ("a.jpg", "wrong.png")]
    first, second = rows_of(analyses, request, ["a.jpg", "wrong.png"])
    assert first["rollout.inside"] == pytest.approx(found["a.jpg"]["rollout.inside"])
    assert second["error"] == found["wrong.png"]["error"]
    run_batch(BatchRequest(model, MAPS, box=BOX), items, tmp_path / "boxes")
    boxes = rows(tmp_path / "boxes")
    for column in ("rollout.inside", "inside.area"):
        assert boxes["deep/b.png"][column] == pytest.approx(found["deep/b.png"][column])
    with pytest.raises(ConfigError, match="another request, with other 'masks', 'box'"):
        run_batch(BatchRequest(model, MAPS, box=BOX), items, tmp_path / "out")


def test_a_box_has_the_pixels_of_a_picture_that_waits_smaller(
    make_model: Callable[..., Model], pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = BatchRequest(make_model(), MAPS, box=BOX)
    run_batch(request, read_items(str(pictures)), tmp_path / "whole")
    monkeypatch.setattr(work, "MAX_QUEUED_PIXELS", 99)
    monkeypatch.setattr(work, "QUEUED_SIDE_PX", 30)
    run_batch(request, read_items(str(pictures)), tmp_path / "small")
    whole, small = rows(tmp_path / "whole"), rows(tmp_path / "small")
    for name, row in whole.items():
        assert row["error"] is None and small[name]["rollout.inside"] == row["rollout.inside"]


def test_a_map_of_zeros_is_not_a_number(
    make_model: Callable[..., Model], pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    for parameter in model.network.classifier.parameters():  # type: ignore[union-attr]
        parameter.zero_()
    request = BatchRequest(model, (MapRequest("relevance"),), box=BOX)
    (row,) = rows_of([vitviz.analyze(pictures / "a.jpg", model)], request)
    assert math.isnan(row["relevance.inside"]) and row["inside.area"] == pytest.approx(16 * 25 / 2400)


def test_what_gives_no_share_is_refused(make_model: Callable[..., Model], pictures: Path, tmp_path: Path) -> None:
    model = make_model()
    plain, signed = BatchRequest(model, MAPS), (MapRequest("occlusion", {"signed": True}),)
    masks = tmp_path / "masks"
    Image.new("1", (60, 40)).save(masks / "a.png")
    calls = {
        "masks and box: both given": lambda: replace(plain, masks=pictures, box=BOX),
        ".*no such folder": lambda: replace(plain, masks=pictures / "none"),
        r"box = \(3, 4, 3, 5\): expected four numbers": lambda: replace(plain, box=(3, 4, 3, 5)),
        "occlusion:signed=True: a signed map has no share": lambda: replace(plain, maps=signed, box=BOX),
        ".*'a.TIF', 'a.png' for a.jpg; expected one": lambda: replace(plain, masks=masks).region_of("a.jpg"),
    }
    check_refusals(VitvizError, calls)
    outside = rows_of([vitviz.analyze(pictures / "a.jpg", model)], replace(plain, box=(0, 0, 61, 9)))
    assert "expected a rectangle inside the picture of 60×40 pixels" in outside[0]["error"]


def test_the_command_takes_a_box(capsys: pytest.CaptureFixture[str]) -> None:
    _, options = parse(["batch", "photos", "out", "--box", "1,2,3.5,4"])
    assert options["box"] == (1, 2, 3.5, 4)
    with pytest.raises(SystemExit):
        parse(["batch", "photos", "out", "--box", "1,2"])
    assert "'1,2': expected LEFT,TOP,RIGHT,BOTTOM, in pixels" in capsys.readouterr().err


def test_masks_are_found_by_the_path_of_a_row_and_by_composed_letters(tmp_path: Path) -> None:
    decomposed = unicodedata.normalize("NFD", "é.png")
    for name in ("dog/1.png", "t.png", decomposed):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert mask_of("t.parquet#3 dog/1.jpg", tmp_path) == tmp_path / "dog" / "1.png"
    # A row without a path has no mask, least of all that of the table's name.
    assert mask_of("t.parquet#3", tmp_path) is None
    found = mask_of("é.jpg", tmp_path)
    assert found is not None and found.samefile(tmp_path / decomposed)

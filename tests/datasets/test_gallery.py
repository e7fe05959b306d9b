"""The gallery: one page over the results of a batch, which sorts and opens without a server."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

import vitviz
from tests.driver import new_context
from tests.support.pictures import write_photos
from vitviz import ConfigError, Model
from vitviz.datasets import BatchRequest, MapRequest, read_items, run_batch
from vitviz.datasets.gallery import GALLERY_PROBES, write_gallery
from vitviz.evaluation.probes import probe

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

BOX = (10, 0, 30, 20)
STRANGE = "odd </script> & @keys@ #1.png"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    names = ("a.png", "b.png", "deep/c.png", "Class_2/d.png", STRANGE)
    return write_photos(tmp_path / "photos", names, [(60, 40)], ["broken.png"])


def made(model: Model, photos: Path, output: Path, **options: Any) -> Path:
    request = BatchRequest(model, (MapRequest("rollout"),), GALLERY_PROBES, box=BOX)
    run_batch(request, read_items(str(photos)), output, **{"thumbnails": True, **options})
    return write_gallery(output)


def pictures_in(page: Path) -> dict[str, dict[str, Any]]:
    found = re.search(r"^const PICTURES = (.*);$", page.read_text(), re.MULTILINE)
    assert found is not None
    return {each["path"]: each for each in json.loads(found[1])}


def test_its_numbers_are_those_of_the_pictures(make_model: Callable[..., Model], photos: Path, tmp_path: Path) -> None:
    model = make_model()
    found = pictures_in(made(model, photos, tmp_path / "out"))
    assert sorted(found) == sorted(["a.png", "b.png", "deep/c.png", "Class_2/d.png", "broken.png", STRANGE])
    labelled = found["Class_2/d.png"]
    assert labelled["truth"] == "class 2" and labelled.get("wrong", False) == (labelled["label"] != "class 2")
    assert "truth" not in found["deep/c.png"]
    for name in ("a.png", "deep/c.png"):
        analysis, each = vitviz.analyze(photos / name, model), found[name]
        best = analysis.predictions(1)[0]
        assert (each["label"], each["confidence"]) == (best.label, pytest.approx(best.probability, abs=1e-6))
        entropy = probe(analysis, "attention_entropy").measurements["entropy"].values.mean()
        mass = probe(analysis, "sink_mass").measurements["mass"].values.mean()
        assert (each["entropy"], each["sink_mass"]) == pytest.approx((float(entropy), float(mass)), abs=1e-5)
        assert each["inside"] == pytest.approx(analysis.rollout().share_inside(BOX), abs=1e-6)
        for kind in ("thumbnail", "map"):
            with Image.open(io.BytesIO(base64.b64decode(each[kind]))) as small:
                assert max(small.size) == 160
    assert "expected a JPEG" in found["broken.png"]["error"] and "thumbnail" not in found["broken.png"]


def test_what_does_not_fit_is_said(make_model: Callable[..., Model], photos: Path, tmp_path: Path) -> None:
    made(make_model(), photos, tmp_path / "out")
    page = write_gallery(tmp_path / "out", 2)
    assert len(pictures_in(page)) == 2 and "4 more are in the table" in page.read_text()


def test_rows_of_before_the_gallery_are_there_without_pictures(
    make_model: Callable[..., Model], photos: Path, tmp_path: Path
) -> None:
    page = made(make_model(), photos, tmp_path / "out", thumbnails=False)
    assert "thumbnail" not in pictures_in(page)["a.png"]


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no results of a batch there"):
        write_gallery(tmp_path)


@pytest.mark.parametrize("look", [("light", 1200), ("dark", 340)], ids=str)
def test_the_page_sorts_finds_and_opens(
    browser: Browser, make_model: Callable[..., Model], photos: Path, tmp_path: Path, look: tuple[Any, int]
) -> None:
    from vitviz.cli.batching import EXPLORERS, _explorers

    page_path = made(make_model(), photos, tmp_path / "out", writers=[_explorers("small", None, None)])
    expected = pictures_in(page_path)
    context = new_context(browser, color_scheme=look[0], viewport={"width": look[1], "height": 700}, offline=True)
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(page_path.as_uri())
    names = page.locator(".name")
    assert names.all_text_contents() == sorted(expected)
    for key in ("confidence", "entropy", "sink_mass", "inside"):
        page.select_option("#sort", key)
        known = [each for each in expected.values() if key in each]
        order = sorted(known, key=lambda each: (-each[key], each["path"]))
        # What has no value stands last, whatever the order.
        assert names.all_text_contents() == [*(each["path"] for each in order), "broken.png"]
        page.click("#order")
        order = sorted(known, key=lambda each: (each[key], each["path"]))
        assert names.all_text_contents() == [*(each["path"] for each in order), "broken.png"]
    page.check("#wrong")
    wrong = ["Class_2/d.png"] * (expected["Class_2/d.png"]["label"] != "class 2")
    assert names.all_text_contents() == wrong == ["Class_2/d.png"]
    page.uncheck("#wrong")
    page.fill("#find", "deep")
    assert names.all_text_contents() == ["deep/c.png"]
    before = page.locator(".tile img").get_attribute("src")
    page.check("#maps")
    assert page.locator(".tile img").get_attribute("src") != before
    assert page.locator(".tile img").get_attribute("alt") == "rollout of deep/c.png"
    assert page.evaluate("document.documentElement.scrollWidth") <= look[1]
    page.fill("#find", "odd")
    page.click(".tile a")
    page.wait_for_selector("#vv-explorer .vx-canvas")
    assert page.title() == Path(STRANGE).name and f"/{EXPLORERS}/" in page.url
    assert errors == []
    context.close()

"""An atlas: its numbers are those of a plain computation over the same rows."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from scipy import special, stats

from tests.driver import new_context
from tests.support.pictures import write_photos
from tests.support.refusals import check_refusals
from vitviz import ConfigError, DataError, Model
from vitviz.datasets import BatchRequest, MapRequest, read_atlas, read_items, run_batch
from vitviz.datasets.atlas import MAX_CLASSES, _share_bounds
from vitviz.datasets.atlas_page import write_atlas

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

PROBES = ("attention_entropy", "attention_distance", "sink_mass", "head_similarity", "token_norms")
COUNT = 14
QUOTED = "attention:head=max,query=1x2"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for results that are computed once."""
    return tmp_path_factory.mktemp("written")


@pytest.fixture
def results(make_model: Callable[..., Model], written: Path, tmp_path: Path) -> Path:
    """A copy of the results of pictures of two grids, one broken, in several parts."""
    if not (written / "results").exists():
        compute(make_model(), written)
    assert len(list((written / "results" / "parts").iterdir())) == 3
    return shutil.copytree(written / "results", tmp_path / "results")


def compute(model: Model, written: Path) -> None:
    names = [f"{number:02d} '\"<b>.png" for number in range(COUNT)]
    folder = write_photos(written / "photos", names, [*[(60, 40)] * 6, (60, 20)], ["broken.png"])
    maps = (MapRequest("rollout"), MapRequest("attention", {"head": "max", "query": (1, 2)}))
    request = BatchRequest(model, maps, PROBES, "native")
    items = list(read_items(str(folder)))
    for end in (5, 9, len(items)):
        run_batch(request, items[:end], written / "results", thumbnails=end != 9)


def rows_of(results: Path) -> list[dict[str, Any]]:
    found = [row for part in (results / "parts").iterdir() for row in parquet.read_table(part).to_pylist()]
    return [row for row in found if row["error"] is None]


def test_means_and_intervals_are_those_of_the_pictures(results: Path) -> None:
    atlas, rows = read_atlas(results), rows_of(results)
    assert (atlas.model, atlas.pictures, atlas.failed) == ("small", COUNT, 1)
    assert set(atlas.heads) == {"attention_entropy.entropy", "attention_distance.distance", "sink_mass.mass"}
    assert set(atlas.pairs) == {"head_similarity.divergence"}
    for name, means in {**atlas.heads, **atlas.pairs}.items():
        values = np.array([np.reshape(row[name], row[f"{name}.shape"]) for row in rows], float)
        np.testing.assert_allclose(means.mean, values.mean(0), rtol=1e-6, atol=1e-9)
        half = stats.sem(values) * stats.t.ppf(0.975, COUNT - 1)
        mean = values.mean(0)
        if name == "sink_mass.mass":
            # A share: on the logit's scale.
            half = np.divide(half, mean * (1 - mean), where=half > 0, out=np.zeros_like(half))
            low, high = (special.expit(special.logit(mean) + sign * half) for sign in (-1, 1))
        else:
            low, high = np.maximum(mean - half, 0), mean + half
        np.testing.assert_allclose(means.low, low, rtol=1e-5, atol=1e-9)
        np.testing.assert_allclose(means.high, high, rtol=1e-5, atol=1e-9)
        assert (means.count == COUNT).all()


def test_mean_maps_are_of_one_grid_and_by_class(results: Path) -> None:
    atlas, rows = read_atlas(results), rows_of(results)
    grids = Counter((row["rows"], row["columns"]) for row in rows)
    assert (
        len(grids) == 2
        and atlas.grid == grids.most_common(1)[0][0]
        and atlas.pictures_of_other_grids == min(grids.values())
    )
    rows = [row for row in rows if (row["rows"], row["columns"]) == atlas.grid]
    classes = Counter(row["predictions"][0]["label"] for row in rows)
    assert set(atlas.maps) == {"rollout", QUOTED}
    for name, whole in atlas.maps.items():
        assert whole.count == len(rows)
        np.testing.assert_allclose(whole.values.ravel(), np.mean([row[name] for row in rows], 0), rtol=1e-5)
        assert {label: each.count for label, each in atlas.classes[name].items()} == dict(
            classes.most_common(MAX_CLASSES)
        )
        for label, each in atlas.classes[name].items():
            chosen = [row[name] for row in rows if row["predictions"][0]["label"] == label]
            np.testing.assert_allclose(each.values.ravel(), np.mean(chosen, 0), rtol=1e-5)


def test_pictures_that_stand_out_are_the_extremes(results: Path) -> None:
    atlas, rows = read_atlas(results), rows_of(results)
    name = "attention_entropy.entropy"
    shape = atlas.heads[name].mean.shape
    for layer, head in np.ndindex(shape):
        order = sorted(((row[name][layer * shape[1] + head], row["path"]) for row in rows), reverse=True)
        found = atlas.standouts[name][layer][head]
        assert [path for path, _ in found.highest] == [path for _, path in order[:3]]
        assert [path for path, _ in found.lowest] == [path for _, path in order[:-4:-1]]
        assert [value for _, value in found.highest] == pytest.approx([value for value, _ in order[:3]])
    # The second run kept no small pictures.
    named = {path for layers in atlas.standouts[name] for each in layers for path, _ in each.highest + each.lowest}
    assert atlas.thumbnails and set(atlas.thumbnails) < {row["path"] for row in rows}
    assert named & set(atlas.thumbnails)


def test_a_missing_number_is_left_out_of_a_mean(results: Path) -> None:
    part = min((results / "parts").iterdir())
    table = parquet.read_table(part)
    name = "sink_mass.mass"
    values = [None if each is None else [float("nan"), *each[1:]] for each in table.column(name).to_pylist()]
    place = table.schema.get_field_index(name)
    parquet.write_table(
        table.set_column(place, table.schema.field(place), pa.array(values, pa.list_(pa.float32()))), part
    )
    before = sum(each is not None for each in values)
    means = read_atlas(results).heads[name]
    assert means.count[0, 0] == COUNT - before and (means.count.flat[1:] == COUNT).all()
    assert np.isfinite(means.mean).all()


@pytest.mark.parametrize("look", [("dark", 340)], ids=str)
def test_the_page_has_everything_inside(browser: Browser, results: Path, written: Path, look: tuple[Any, int]) -> None:
    atlas, path = read_atlas(results), written / "atlas" / "atlas.html"
    # Its figures take seconds to draw, and are the same on both screens.
    if not path.exists():
        assert write_atlas(atlas, written / "atlas") == path
    numbers = json.loads((written / "atlas" / "atlas.json").read_text())
    assert numbers["heads"]["sink_mass.mass"]["mean"] == atlas.heads["sink_mass.mass"].mean.tolist()
    assert len(list((written / "atlas" / "figures").glob("*.svg"))) == 6
    context = new_context(browser, color_scheme=look[0], viewport={"width": look[1], "height": 700}, offline=True)
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    assert page.locator("figure img").count() == 6
    assert all(page.locator("figure img").nth(each).evaluate("image => image.naturalWidth > 100") for each in range(6))
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    entropy = atlas.heads["attention_entropy.entropy"]
    cells = page.locator("table").first.locator("tbody tr").first.locator("td").all_text_contents()
    assert cells == [
        "0",
        "0",
        f"{entropy.mean[0, 0]:.4g}",
        f"{entropy.low[0, 0]:.4g} to {entropy.high[0, 0]:.4g}",
        "14",
    ]
    assert page.get_by_text(atlas.standouts["attention_entropy.entropy"][0][0].highest[0][0]).first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= look[1]
    context.close()


def test_what_there_is_no_atlas_of_is_one_sentence(
    make_model: Callable[..., Model], results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, whole = make_model(), MapRequest("rollout")
    (tmp_path / "file").write_text("")
    photos = write_photos(tmp_path / "photos", ["a.png"], broken=["a.png"])
    atlas, broken = read_atlas(results), read_items(str(photos))
    run_batch(BatchRequest(model, (whole,)), broken, tmp_path / "none")
    run_batch(BatchRequest(model), [], tmp_path / "empty")
    items = read_items(str(write_photos(photos, ["a.png"])))
    run_batch(BatchRequest(model, probes=("token_norms",)), items, tmp_path / "norms")
    data = {
        ".*none of 1 pictures could be analysed": lambda: read_atlas(tmp_path / "none"),
        ".*no rows in it": lambda: read_atlas(tmp_path / "empty"),
        ".*expected a batch with at least one --map, or a --probe of heads": lambda: read_atlas(tmp_path / "norms"),
    }
    check_refusals(DataError, data)
    places = {
        ".*no results of a batch there": lambda: read_atlas(tmp_path),
        ".*cannot be written": lambda: write_atlas(atlas, tmp_path / "file" / "atlas"),
    }
    check_refusals(ConfigError, places)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "duckdb", None)
        check_refusals(ConfigError, {r".*pip install 'duckdb>=1.1'": lambda: read_atlas(results)})
    run = json.loads((results / "_run.json").read_text())
    (results / "_run.json").write_text(json.dumps({**run, "schema": 99}))
    check_refusals(ConfigError, {".*rows of schema 99; this version reads 6": lambda: read_atlas(results)})
    (results / "_run.json").write_text(json.dumps(run))
    min((results / "parts").iterdir()).write_bytes(b"damaged")
    check_refusals(DataError, {r".*part-000000\.parquet: damaged": lambda: read_atlas(results)})


def test_the_command_writes_it(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from vitviz.cli.command import main

    assert main(["atlas", str(results), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert re.fullmatch(rf"atlas of {COUNT} pictures: .*atlas\.html\n", said)


def test_no_interval_leaves_what_a_share_can_be() -> None:
    mean = np.array([0.0, 1e-4, 0.01, 0.5, 0.999, 1.0, np.nan])
    half = np.array([0.0, 0.01, 0.02, 0.3, 0.02, 0.0, np.nan])
    low, high = _share_bounds(mean, half)
    known = ~np.isnan(mean)
    assert np.isnan(low[~known]).all() and np.isnan(high[~known]).all()
    assert (low[known] >= 0).all() and (low[known] <= mean[known]).all()
    assert (mean[known] <= high[known]).all() and (high[known] <= 1).all()
    assert (low[0], high[0], low[5], high[5]) == (0, 0, 1, 1) and low[1] > 0 and high[3] < 1
    # Of a share in the middle with many pictures, the two kinds agree.
    np.testing.assert_allclose(_share_bounds(np.array([0.5]), np.array([0.01])), [[0.49], [0.51]], atol=1e-5)

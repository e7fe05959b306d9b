"""The lines of Python of a page run, and make the maps that it shows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitviz
from tests.parity.transformers_cases import make as make_published
from tests.reference_packages import transformers  # noqa: F401
from tests.support.example import COARSE, COARSEST, EXAMPLE
from tests.support.makers import MakeModel
from tests.support.map_contents import map_metadata, map_values
from tests.support.visits import on_loop
from tests.towers import make_transformers
from vitviz import METHODS, Model, save_checkpoint
from vitviz.ui.handlers import Handlers
from vitviz.ui.pictures import Upload
from vitviz.ui.service import AnalysisService
from vitviz.ui.state import PageState, View

pytestmark = pytest.mark.parity
OWN = "mine & yours.safetensors"


def ignore(state: object) -> None:
    """Of a request, how far it is."""


def own_checkpoint(handlers: Handlers, folder: Path, model: Model, picture: Upload) -> dict[str, Any]:
    """What a page gets that opened a checkpoint and a picture of its own, which lie in a folder."""
    save_checkpoint(folder / OWN, model)
    (folder / picture.name).write_bytes(picture.path.read_bytes())
    files = [{"path": str(folder / OWN), "orig_name": OWN}]
    name = handlers.service.pictures.id(Upload(folder / picture.name, picture.name))
    request = {"state": PageState((View(picture=name),)).to_json(), "index": 0, "own": {"files": files}}
    return on_loop(handlers.change_view(request, ignore))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the app keeps its files, and where the lines of Python run."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def handlers(make_model: MakeModel) -> Handlers:
    return Handlers(AnalysisService(make_model()))


def lines_of(handlers: Handlers, link: str) -> str:
    """The lines of Python of what a link opens."""
    opened = on_loop(handlers.open_link({"link": link}, ignore))
    python: str = described(handlers, opened["state"], *(each["uid"] for each in opened["views"]))["python"]
    return python


def described(handlers: Handlers, state: dict[str, Any], *uids: str) -> dict[str, Any]:
    return handlers.describe({"state": state, "uids": list(uids)})


def run(python: str) -> dict[str, Any]:
    """The names that the lines leave, after all of them have run."""
    found: dict[str, Any] = {}
    exec(compile(python, "page.py", "exec"), found)
    return found


PARAMETERS: dict[str, dict[str, Any]] = {
    "attention": {"direction": "column", "layer": 1, "head": 2, "query": [3, 5]},
    "attention_mass": {"mass": 0.3, "layer": 0, "query": "cls"},
    "rollout": {"head_fusion": "max", "discard_ratio": 0.1, "residual_weight": 0.25, "start_layer": 1},
    "attention_flow": {"most_patches": 6},
    "relevance": {"target": 3, "query": [3, 5]},
    "gradient_rollout": {"target": {"text": "no text is read here"}, "discard_ratio": 0.2},
    "grad_cam": {"target": {"class": 0, "against": 2}, "layer": 1},
    "legrad": {"target": {"like": "example:rocket.jpg", "patch": [1, 2]}},
    "occlusion": {"target": {"margin": True}, "signed": True},
    "integrated_gradients": {"steps": 4},
}


@pytest.mark.parametrize("method", [name for name in METHODS if name != "pooling_attention"])
def test_the_lines_make_the_map_that_the_page_shows(
    handlers: Handlers,
    make_model: MakeModel,
    picture: Upload,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    method: str,
) -> None:
    model = replace(make_model(), labels=("a", 'b "quoted"', "c", "c", "e\u202e"))
    opened = own_checkpoint(handlers, tmp_path, model, picture)
    uid = opened["views"][0]["uid"]
    hidden = {"heads_off": [[1, 0]], "patches_off": [[2, 3], [2, 4]]}
    view = {**opened["state"]["views"][0], "method": method, "parameters": PARAMETERS.get(method, {}), **hidden}
    answer = described(handlers, {**opened["state"], "views": [view]}, uid)
    legal = answer["state"]["views"][0]
    found = on_loop(handlers.map_slowly({"uid": uid, "method": method, "parameters": legal["parameters"]}, ignore))
    made = run(answer["python"])
    # What the model says without what is hidden from it is printed, of the target or the likeliest class.
    target = made["analysis"].predictions(1)[0].index if legal["parameters"].get("target") is None else None
    without = made["analysis"].switched_off([(1, 0)], [(2, 3), (2, 4)], target=target)
    printed = capsys.readouterr().out
    assert printed.startswith("tensor(") and (target is None or printed == str(without) + "\n")
    shown = map_values(found)[len(opened["views"][0]["prefix"]) :]
    np.testing.assert_allclose(made["heatmap"].values.flatten(), shown, rtol=1e-4, atol=1e-7)
    assert (tmp_path / f"{method}.png").is_file()
    assert map_metadata(found)["description"].startswith(made["heatmap"].description)


def test_the_lines_of_an_example_draw_what_the_page_shows(bundled: Model) -> None:
    look = "p.layer=0&p.query=3,4&colormap=magma&opacity=0.25&scale=robust&percentiles=5,90&low=0.001"
    made = run(lines_of(Handlers(AnalysisService(bundled)), f"?resolution={COARSE}&fit=crop&method=attention&{look}"))
    style = vitviz.Style(
        "magma", 0.25, smooth=True, fade=True, drain=True, scale="robust", percentiles=(5, 90), low=0.001
    )
    analysis = vitviz.analyze(EXAMPLE, bundled, "crop", resolution=COARSE)
    expected = analysis.attention(0, query=(3, 4))
    np.testing.assert_array_equal(made["heatmap"].values, expected.values)
    with Image.open("attention.png") as written:
        assert np.array_equal(np.asarray(written), np.asarray(expected.overlay(style, (3, 4))))


def test_the_lines_open_all_files_of_a_checkpoint(
    handlers: Handlers, picture: Upload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    names = {0: "crow", 1: "crane"}
    make_published(folder, "ViTForImageClassification", "ViTConfig", id2label=names)
    (folder / "model.safetensors").rename(folder / "mine.safetensors")
    files = [{"path": str(path), "orig_name": path.name} for path in sorted(folder.iterdir())]
    (folder / picture.name).write_bytes(picture.path.read_bytes())
    upload = {"path": str(folder / picture.name), "orig_name": picture.name}
    request = {"state": PageState().to_json(), "index": 0, "own": {"files": files}, "upload": upload}
    opened = on_loop(handlers.change_view(request, ignore))
    python = described(handlers, opened["state"], opened["views"][0]["uid"])["python"]
    assert "there are config.json, mine.safetensors, and no other weights" in python
    monkeypatch.chdir(folder)
    assert run(python)["model"].labels == tuple(names.values())


def test_two_maps_are_made_one_after_the_other(bundled: Model, tmp_path: Path) -> None:
    handlers = Handlers(AnalysisService(bundled))
    link = f"?method=attention&resolution={COARSEST}&second.method=rollout&second.example=rocket.jpg&layout=two"
    made = run(lines_of(handlers, link))
    rocket = vitviz.analyze(EXAMPLE.with_name("rocket.jpg"), bundled, resolution=COARSEST)
    np.testing.assert_array_equal(made["heatmap"].values, rocket.rollout().values)
    assert {"attention.png", "rollout-2.png"} <= {path.name for path in tmp_path.iterdir()}
    # Of what is not kept, and of a model that is not open yet, there are no lines.
    opened = on_loop(handlers.open_link({"link": link}, ignore))
    uids = [each["uid"] for each in opened["views"]]
    others = [{**view, "model": "dino_vits16"} for view in opened["state"]["views"]]
    for views, known in ((others, uids), (opened["state"]["views"], [uids[0], "gone"])):
        assert described(handlers, {**opened["state"], "views": views}, *known)["python"] == ""


def test_a_snapshot_is_opened_by_its_step(make_model: MakeModel, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "snapshots"
    folder.mkdir(parents=True)
    for step in (0, 20):
        save_checkpoint(folder / f"step-{step:07d}.safetensors", make_model())
    model = replace(vitviz.load(folder), name=str(folder))
    python = lines_of(Handlers(AnalysisService(model)), "?step=0")
    assert "model = vitviz.open_snapshot(model, 0)" in python and run(python)["model"].step == 0


def test_a_text_is_read_by_the_checkpoint_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_transformers(tmp_path / "clip", "CLIP")
    model = replace(vitviz.load(tmp_path / "clip"), name=str(tmp_path / "clip"))
    handlers = Handlers(AnalysisService(model))
    words = 'a "cat"\\'
    state = PageState((View(method="relevance", parameters={"target": {"text": words}}),)).to_json()
    uid = on_loop(handlers.start())["views"][0]["uid"]
    python = described(handlers, state, uid)["python"]
    found = on_loop(
        handlers.map_slowly({"uid": uid, "method": "relevance", "parameters": {"target": {"text": words}}}, ignore)
    )
    shown = map_values(found)[1:]
    np.testing.assert_allclose(run(python)["heatmap"].values.flatten(), shown, rtol=1e-4, atol=1e-7)
    assert json.dumps(words) in python

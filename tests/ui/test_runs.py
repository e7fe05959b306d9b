"""The one event of the page, and what answers a page at once: right numbers, one at a time, kept for a while."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from shutil import copyfile
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitviz
from tests.support.checkpoints import timm_state
from tests.support.example import EXAMPLE
from tests.support.makers import MakeModel
from tests.support.map_contents import map_metadata, map_values
from tests.support.visits import STATE, Visit, by_visitor, on_loop
from tests.support.waiting import HANG_SECONDS
from vitviz import METHODS, Analysis, likeness
from vitviz.analysis import experiments
from vitviz.evaluation.comparison import compare
from vitviz.images import isolated_pictures
from vitviz.images.isolated_pictures import LIMITS, SHORT_LIMITS
from vitviz.metrics.faithfulness import METRICS
from vitviz.progress import Progress
from vitviz.system.strangers import PICTURE_SECONDS, SHORT_SECONDS
from vitviz.ui import facts, handlers, progress_reports
from vitviz.ui.first_view import opening_view
from vitviz.ui.handlers import ALONE, Handlers
from vitviz.ui.links import PRIVATE_CHECKPOINT
from vitviz.ui.pictures import EXPIRED, Upload
from vitviz.ui.runs import PageRuns
from vitviz.ui.server import uploaded_pictures
from vitviz.ui.service import NO_TARGET, AnalysisService
from vitviz.ui.state import MISSING_MODEL, PageState, View
from vitviz.worker import Limits


def patches(answer: Mapping[str, Any], analysis: Analysis) -> np.ndarray[Any, Any]:
    return map_values(answer)[analysis.trace.layout.prefix_count :]


# ---- each kind, against the library ----


def test_the_page_opens_with_the_first_example(first: dict[str, Any], analysis: Analysis) -> None:
    [facts] = first["views"]
    assert first["state"] == PageState((opening_view(analysis),)).to_json()
    assert facts["name"] == "chelsea.jpg" and facts["model"] == ""
    assert (facts["rows"], facts["columns"], facts["prefix"]) == (4, 6, ["cls"])
    assert facts["pixels"] == [451, 300] and facts["width"] == 451 and facts["resolution"] == 16
    labels = [each["label"] for each in facts["predictions"]]
    assert labels == [each.label for each in analysis.predictions()[:5]]
    assert first["models"][""]["labels"] == list(analysis.model.labels)


def test_what_a_page_is_told_is_computed_in_its_turn_and_once(
    visit: Visit, picture: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody waits for what the event loop computes."""
    name = visit.handlers.service.pictures.id(picture)
    looked, told = list[threading.Thread](), list[threading.Thread]()
    look, tell = experiments.far_look, handlers.analysis_facts

    def told_facts(*given: Any, **how: Any) -> dict[str, Any]:
        told.append(threading.current_thread())
        return tell(*given, **how)

    monkeypatch.setattr(
        experiments, "far_look", lambda *given: (looked.append(threading.current_thread()), look(*given))[1]
    )
    monkeypatch.setattr(handlers, "analysis_facts", told_facts)
    facts = visit.run("open", link=f"?{name.replace(':', '=')}")["views"][0]
    found = visit.run("flip", uid=facts["uid"])
    assert facts["flip"] is None and len(looked) == len(told) == 1
    assert threading.main_thread() not in (*looked, *told)
    monkeypatch.setattr(experiments, "flip", lambda *_: pytest.fail("searched again"))
    assert visit.run("flip", uid=facts["uid"]) == found
    again = visit.handlers._facts(facts["uid"], visit.handlers.service.cached(facts["uid"]), View(), None)
    assert again["flip"] == found and len(looked) == 1


def test_an_example_is_run_once_and_a_picture_once_for_each_visitor(service: AnalysisService, picture: Upload) -> None:
    example, model = service.pictures.upload(View().picture), service.models.start
    found, own = (on_loop(service.analyze(model, each, show_whole=True)) for each in (example, picture))
    assert on_loop(service.analyze(model, example, "crop"))[0] != found[0]
    # The page names the fit that was chosen for it.
    assert on_loop(service.analyze(model, picture, service.origins[own[1]].fit)) == own
    with by_visitor("127.0.0.2"):
        assert on_loop(service.analyze(model, example, show_whole=True)) == found
        assert on_loop(service.analyze(model, picture))[0] != own[0]
    # Another model is another analysis, whatever it is called.
    other = replace(model, name="another")
    assert on_loop(service.analyze(other, example))[1].model is other
    service._forget_model(model)
    assert on_loop(service.analyze(model, example, show_whole=True))[0] != found[0]


def test_a_link_is_opened(visit: Visit, service: AnalysisService) -> None:
    link = "?example=coffee.jpg&resolution=32&fit=crop&method=relevance&p.target=class+3"
    reply = visit.run("open", link=f"{link}&second.method=rollout&layout=two")
    assert reply["notes"] == []
    first, second = reply["state"]["views"]
    assert first["parameters"] == {"target": 3} and second["method"] == "rollout"
    assert reply["views"][0]["uid"] == reply["views"][1]["uid"] and set(reply["models"]) == {""}
    expected = vitviz.analyze(
        vitviz.weights.resources("assets") / "coffee.jpg", service.models.start, "crop", resolution=32
    )
    map_of = visit.run("map", uid=reply["views"][0]["uid"], method="relevance", parameters={"target": 3})
    np.testing.assert_array_equal(patches(map_of, expected), expected.map("relevance", target=3).values.flatten())


def test_what_a_link_asks_for_and_cannot_be_is_said_and_replaced(visit: Visit, service: AnalysisService) -> None:
    reply = visit.run("open", link=f"?picture={'x' * 22}&resolution=17&method=relevance&p.target=3&p.start_layer=9")
    [view] = reply["state"]["views"]
    assert view == {**STATE["views"][0], "method": "relevance", "parameters": {"target": 3}}
    assert reply["notes"] == [
        "Resolution 17: expected a multiple of the patch's 4 pixels: 16 or 20. The trained resolution is used.",
        EXPIRED,
        "Start layer = 9: expected a whole number from -3 to 2. The default is shown.",
    ]


@pytest.mark.parametrize(
    ("word", "model", "sentence"),
    [
        ("model=dino_vits16", "dino_vits16",
         "dino_vits16: expected a model that this app's operator has chosen: 'small'."),
        ("own=mine.pth", MISSING_MODEL, PRIVATE_CHECKPOINT.format("mine.pth")),
        ("model=nothing", MISSING_MODEL, "Left out of this link: model = 'nothing': expected a name of the menu, "
         "hf:OWNER/NAME, timm:NAME, or nothing."),
    ],
)  # fmt: skip
def test_a_link_to_a_model_that_is_not_there_opens_its_picture_and_no_other_model(
    visit: Visit, service: AnalysisService, picture: Upload, word: str, model: str, sentence: str
) -> None:
    service.models.is_shared = True
    name = service.pictures.id(picture)
    link = f"?{word}&{name.replace(':', '=')}&method=relevance&p.target=3&second.model=start&layout=two"
    reply = visit.run("open", link=link)
    first, second = reply["state"]["views"]
    assert (first["model"], first["picture"], first["method"]) == (model, name, "relevance")
    assert reply["views"][0] == {"missing": ALONE.format(sentence)} and reply["notes"] == [sentence]
    assert (second["model"], reply["views"][1]["model"], set(reply["models"])) == ("", "", {""})
    shown = visit.run("picture", state=reply["state"], index=0)["picture"]
    with Image.open(BytesIO(base64.b64decode(shown.partition(",")[2]))) as opened:
        assert opened.size == (900, 540)
    # Where it alone is asked for, so are its maps.
    assert "failed" in visit.run("analyze", state=reply["state"], index=0)


def test_another_picture_is_analysed_and_has_a_link(visit: Visit, picture: Upload, service: AnalysisService) -> None:
    state = {**STATE, "views": [{**STATE["views"][0], "pins": [[3, 5], [9, 9]]}]}
    # Names stay whole, whatever signs of addresses are in them.
    title = "my%20noise #1? " + 225 * "x" + ".png"
    reply = visit.analyze(picture.path, title, state)
    name = reply["state"]["views"][0]["picture"]
    assert name.startswith("picture:")
    assert reply["views"][0]["name"] == title and reply["views"][0]["pixels"] == [40, 24]
    assert reply["notes"] == ["Left out of the pins: 1, which this model and picture lack."]
    answer = visit.ask("describe", state=reply["state"], uids=[reply["views"][0]["uid"]])
    assert answer["link"] == f"?picture={name.partition(':')[2]}&method=attention&pins=3,5&p.layer=2&p.query=cls"
    again = visit.run("open", link=answer["link"])
    assert again["state"] == reply["state"] and again["views"][0]["pixels"] == [40, 24]
    expected = vitviz.analyze(picture.path, service.models.start).rollout().values.flatten()
    shown = visit.ask("map", uid=again["views"][0]["uid"], method="rollout", parameters={})
    np.testing.assert_array_equal(map_values(shown)[1:], expected)


@pytest.mark.parametrize(("size", "fit", "notes"), [((30, 75), "native", ["hides 73% of"]), ((30, 36), None, [])])
def test_a_picture_that_a_crop_would_hide_is_shown_whole_and_decoded_once(
    visit: Visit,
    service: AnalysisService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: tuple[int, int],
    fit: str | None,
    notes: list[str],
) -> None:
    model = service.models.start = replace(
        service.models.start, preprocessing=replace(service.models.start.preprocessing, fit="crop")
    )
    Image.new("RGB", size).save(tmp_path / "tall.png")
    opened, names = uploaded_pictures.open_picture, []
    monkeypatch.setattr(
        uploaded_pictures, "open_picture", lambda *given, **how: names.append(given[2]) or opened(*given, **how)
    )
    reply = visit.analyze(tmp_path / "tall.png")
    assert names == ["tall.png"] and reply["state"]["views"][0]["fit"] == fit
    assert len(reply["notes"]) == len(notes) and all(map(str.__contains__, reply["notes"], notes))
    expected = vitviz.analyze(tmp_path / "tall.png", model, fit).logits.argmax()
    assert reply["views"][0]["predictions"][0]["index"] == expected


def test_a_picture_that_takes_long_waits_with_long_work(
    visit: Visit, wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, tried = uploaded_pictures.open_picture, list[Limits]()

    def noted(*given: Any, limits: Limits, **how: Any) -> Any:
        tried.append(limits)
        return opened(*given, limits=limits, **how)

    monkeypatch.setattr(uploaded_pictures, "open_picture", noted)
    monkeypatch.setattr(isolated_pictures, "PIXELS_A_SECOND", 900 * 400 / 2)
    assert visit.analyze(wide)["views"][0]["predictions"] and tried == [SHORT_LIMITS, LIMITS]
    assert [(each.cpu_seconds, each.niceness) for each in tried] == [(SHORT_SECONDS, 0), (PICTURE_SECONDS, 19)]


def test_a_phones_photograph_is_analysed(visit: Visit, service: AnalysisService, tmp_path: Path) -> None:
    photo = copyfile(Path(__file__).parents[1] / "data" / "display_p3.heic", tmp_path / "photo")
    reply = visit.analyze(photo, "IMG_0001.HEIC")
    assert (reply["views"][0]["name"], reply["views"][0]["pixels"]) == ("IMG_0001.HEIC", [48, 32])
    found, expected = service.cache.get(reply["views"][0]["uid"]), vitviz.analyze(photo, service.models.start)
    assert found is not None and torch.equal(found.logits, expected.logits)


def test_a_checkpoint_of_ones_own_is_opened_for_one_view(visit: Visit, make_model: MakeModel, tmp_path: Path) -> None:
    other = make_model(register_tokens=2, classes=0)
    vitviz.save_checkpoint(tmp_path / "mine.safetensors", other)
    files = [{"path": str(tmp_path / "mine.safetensors"), "orig_name": "mine.safetensors"}]
    state = {**STATE, "layout": "two", "views": STATE["views"] * 2}
    reply = visit.run("analyze", state=state, index=1, own={"files": files, "overrides": "", "hub": None})
    first, second = reply["state"]["views"]
    assert first["model"] == "" and second["model"].startswith("own:") and reply["views"][0]["model"] == second["model"]
    facts = reply["models"][second["model"]]
    assert facts["title"] == "mine.safetensors" and facts["labels"] == [] and "relevance" not in facts["refusals"]
    assert reply["views"][0]["prefix"] == ["cls", "register 1", "register 2"] and reply["views"][0]["predictions"] == []
    link = visit.ask("describe", state=reply["state"], uids=["", ""])["link"]
    assert link == "?method=attention&second.method=attention&second.own=mine.safetensors&layout=two"
    assert visit.run("analyze", state=reply["state"], index=1)["views"][0]["layers"] == 3


def test_what_is_stated_of_a_checkpoint_of_ones_own_is_told(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "leaves.pth"
    torch.save({"model": timm_state(classes=5)}, path)
    stated = "heads=3, activation=gelu, norm_epsilon=1e-6, labels=a,b, c d,e,f, pooling=cls, normalisation=half"
    own = {"files": [{"path": str(path), "orig_name": path.name}], "overrides": stated}
    reply = visit.run("analyze", state=STATE, index=0, own=own)
    (facts,) = reply["models"].values()
    assert facts["labels"] == ["a", "b", "c d", "e", "f"]
    # What was stated is not assumed any more; how it is cropped still is.
    (source,) = (value for name, value in facts["card"] if name == "preprocessing")
    assert "mean and std 'half', stated by the user; no file beside the checkpoint says it" in source
    # Whoever opens a link to it is told what to state.
    link = visit.ask("describe", state=reply["state"], uids=[""])["link"]
    (note,) = visit.run("open", link=link)["notes"][:1]
    assert "(leaves.pth with heads=3, activation=gelu, norm_epsilon=1e-06, pooling=cls, normalisation=half)" in note


def test_a_checkpoint_that_is_refused_gets_no_id(visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "bad.pth").write_bytes(b"none")
    own = {"files": [{"path": str(tmp_path / "bad.pth"), "orig_name": "bad.pth"}]}
    assert "bad" in visit.run("analyze", state=STATE, index=0, own=own)["failed"]
    assert len(visit.handlers.service.models.own) == 0


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({}, "expected either its file, or a name"),
        ({"hub": "a/b", "files": [{"path": "/etc/passwd"}]}, "expected either its file"),
        ({"files": [{"path": "/etc/passwd"}]}, "not uploaded here"),
        ({"files": [{"path": "../../etc/passwd"}]}, "not uploaded here"),
        ({"files": [{"path": str(EXAMPLE), "meta": {"_type": "gradio.FileData"}}]}, "not uploaded here"),
        ({"files": "x" * 9}, "expected a file that was uploaded here"),
        ({"files": 3}, "expected a list of at most 64 files"),
        ({"hub": "a/b", "overrides": "heads"}, "expected NAME=VALUE"),
        ({"hub": 3}, "expected a text of at most"),
        ({"hub": "../.."}, "../..: not a repository of the Hugging Face hub"),
        ({"path": "x"}, "own has no 'path'"),
    ],
)
def test_what_is_no_checkpoint_is_refused(visit: Visit, own: dict[str, Any], words: str) -> None:
    assert words in visit.run("analyze", state=STATE, index=0, own=own)["failed"]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "pooling_attention"])
def test_every_map_is_that_of_the_library(
    visit: Visit, analysis: Analysis, uid: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = {"target": 2} if METHODS[method].class_specific else {}
    quick = visit.ask("map", uid=uid, method=method, parameters=parameters)
    assert ("content" in quick) == (METHODS[method].computed_by != "run")
    answer = visit.run("map", uid=uid, method=method, parameters=parameters)
    expected = analysis.map(method, **parameters)
    np.testing.assert_allclose(patches(answer, analysis), expected.values.flatten(), rtol=1e-5, atol=1e-8)
    assert map_metadata(answer)["description"] == expected.description
    # What was made once is there at once.
    monkeypatch.setattr(visit.handlers.service, "run", None)
    again = visit.run("map", uid=uid, method=method, parameters=parameters)
    np.testing.assert_array_equal(map_values(again), map_values(answer))


def test_a_map_that_begins_with_a_patch_says_which_value_is_its_own(visit: Visit, analysis: Analysis, uid: str) -> None:
    for method, query, own, others in (
        ("relevance", [1, 2], 9, {"target": 1}),
        ("gradient_rollout", [0, 0], 1, {"target": 1}),
        ("relevance", "cls", None, {"target": 1}),
        ("rollout", [1, 2], 9, {"discard_ratio": 0.2}),
    ):
        answer = visit.run("map", uid=uid, method=method, parameters={"query": query, **others})
        asked: Any = tuple(query) if isinstance(query, list) else query
        expected = analysis.map(method, query=asked, **others)
        # The library's numbers, all of them.
        np.testing.assert_allclose(patches(answer, analysis), expected.values.flatten(), rtol=1e-5)
        about = map_metadata(answer)
        assert about.get("self") == (None if own is None else str(own))
        left_out = f"; patch ({query[0]}, {query[1]}) itself is excluded from the colour range (residual identity)"
        assert about["description"] == expected.description + (left_out if own is not None else "")
    assert "self" not in map_metadata(visit.ask("map", uid=uid, method="attention_mass", parameters={}))


@pytest.mark.slow
def test_a_comparison_has_the_numbers_of_the_library(visit: Visit, analysis: Analysis, uid: str) -> None:
    parameters = {"rollout": {"discard_ratio": 0.2}, "relevance": {"query": [1, 2]}, "pooling_attention": {"head": 1}}
    reply = visit.run("compare", uid=uid, parameters=parameters, target=2)
    expected = compare(analysis, {"rollout": {"discard_ratio": 0.2}, "relevance": {"query": (1, 2)}}, 2)
    assert reply["target"] == 2 and reply["target_name"] == "class 2" and reply["unit"] == "probability"
    assert reply["chance"] == pytest.approx(expected.chance)
    assert [each["name"] for each in reply["metrics"]] == list(METRICS)
    assert [each["method"] for each in reply["maps"]] == [each.method for each in expected.maps]
    for found, each in zip(reply["maps"], expected.maps, strict=True):
        assert found["areas"] == pytest.approx(each.areas)
        assert found["beats"] == {metric: expected.beats_chance(each, metric) for metric in METRICS}
        assert found["correlation"] == pytest.approx(each.randomization_correlation)


@pytest.mark.slow
def test_scores_come_as_soon_as_they_are_known(visit: Visit, uid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, original, calls = threading.Event(), Analysis.faithfulness, list[str]()
    monkeypatch.setattr(progress_reports, "CERTAIN_SHARE", 0.0)

    def held(self: Analysis, *given: Any, **named: Any) -> Any:
        calls.append("")
        # The third call is of the second map: the scores of the first must have arrived by then.
        assert len(calls) != 3 or seen.wait(HANG_SECONDS)
        return original(self, *given, **named)

    async def read() -> list[dict[str, Any]]:
        found, request = [], {"page": visit.page, "number": 1, "kind": "compare", "uid": uid, "target": 2}
        async for line in visit.runs.lines(request):
            found.append(line)
            maps = (line.get("unfinished") or {"maps": []})["maps"]
            if [len(each["areas"]) for each in maps] == [len(METRICS)]:
                seen.set()
        return found

    monkeypatch.setattr(Analysis, "faithfulness", held)
    assert "takes long" in visit.ask("map", uid=uid, method="occlusion", parameters={"target": 2})["failed"]
    *progress, last = on_loop(read())
    reply = last["reply"]
    parts = [line["unfinished"] for line in progress if line["unfinished"]]
    assert parts[0]["chance"] == {} and [each["method"] for each in parts[0]["maps"]] == ["attention"]
    for each in parts:
        final = {found["method"]: found for found in reply["maps"]}
        for found in each["maps"]:
            assert found["areas"].items() <= final[found["method"]]["areas"].items()
            assert found["beats"].items() <= final[found["method"]]["beats"].items()
    assert all(
        re.fullmatch(r"Scores of all methods(: about \d+ (s|min) left)?", line["text"])
        for line in progress
        if line["done"]
    )
    # A slow map that has scores is there at once.
    assert "content" in visit.ask("map", uid=uid, method="occlusion", parameters={"target": 2})


@pytest.mark.parametrize(
    ("seconds", "done", "words"),
    [
        *((10.0, done, "Scores") for done in (0, 3, 95, 100)),
        (10.0, 25, "Scores: about 30 s left"),
        (12.5, 25, "Scores: about 40 s left"),
        (60.0, 20, "Scores: about 4 min left"),
        (9.0, 80, "Scores: about 5 s left"),
    ],
)
def test_the_time_left_follows_from_what_is_done(
    monkeypatch: pytest.MonkeyPatch, seconds: float, done: int, words: str
) -> None:
    now, steps = [100.0], list[Any]()
    monkeypatch.setattr(progress_reports, "time", SimpleNamespace(monotonic=lambda: now[0]))
    report = progress_reports.under_title("Scores", steps.append, lambda: {"maps": done})
    now[0] += seconds
    report(Progress(done, 100))
    assert steps == [(words, done, 100, {"maps": done})]


def test_a_comparison_computes_no_map_again(visit: Visit, uid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for method, parameters in (("occlusion", {"target": 2}), ("rollout", {"discard_ratio": 0.2})):
        visit.run("map", uid=uid, method=method, parameters=parameters)
    computed: list[tuple[str, bool]] = []
    original = Analysis.map

    def watched(self: Analysis, method: str, *given: Any, **named: Any) -> Any:
        computed.append((method, self is visit.handlers.service.cached(uid)))
        return original(self, method, *given, **named)

    monkeypatch.setattr(Analysis, "map", watched)
    reply = visit.run("compare", uid=uid, parameters={"rollout": {"discard_ratio": 0.2}}, target=2)
    own = [method for method, is_own in computed if is_own]
    assert not {"occlusion", "rollout"} & {*own} and "relevance" in own and len(reply["maps"]) > len(own)


def test_heads_are_ranked(visit: Visit, analysis: Analysis, uid: str) -> None:
    reply = visit.run("rank", uid=uid, target=None)
    effects = analysis.head_effects()
    np.testing.assert_allclose(reply["drops"], effects.drop, atol=1e-6)
    assert reply["unit"] == "probability" and reply["target"] == int(analysis.logits.argmax())


@pytest.mark.parametrize("function", ["softmax", "sigmoid", "none"])
def test_parts_are_switched_off_and_the_page_shows_what_the_model_calls_a_probability(
    make_model: MakeModel, picture: Upload, function: str
) -> None:
    service = AnalysisService(make_model(probability=function))
    visit = Visit(PageRuns(Handlers(service)))
    uid, analysis = on_loop(service.analyze(service.models.start, picture))
    expected = [
        {"index": analysis.model.labels.index(each.label), "label": each.label, "probability": each.probability}
        for each in (analysis.predictions(5) if function != "none" else [])
    ]
    assert facts.predictions(analysis) == expected
    off = analysis.switched_off([(0, 1), (2, 3)], [(1, 2)])
    shares = {"softmax": lambda logits: logits.softmax(-1), "sigmoid": torch.sigmoid, "none": lambda logits: logits}
    before, after = map(shares[function], (analysis.logits, off))
    reply = visit.run("switch", uid=uid, target=None, heads=[[0, 1], [2, 3]], patches=[[1, 2]])
    unit = "score" if function == "none" else "probability"
    assert reply["unit"] == visit.run("rank", uid=uid, target=2)["unit"] == unit and len(reply["rows"]) == 5
    for row in reply["rows"]:
        index = row["index"]
        assert row["name"] == f"class {index}"
        assert (row["before"], row["after"]) == pytest.approx((float(before[index]), float(after[index])), abs=1e-6)
    assert "this model has layers 0 to 2" in visit.run("switch", uid=uid, heads=[[9, 0]])["failed"]
    everything = [[row, column] for row in range(4) for column in range(6)]
    assert visit.run("switch", uid=uid, patches=everything)["failed"].startswith("all 24 patches are off")


def test_maps_and_measures_can_be_about_likeness(
    make_model: MakeModel, picture: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model without classes: an example, an upload that was not analysed, and a patch of the picture itself."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(picture.path.parent))
    service = AnalysisService(make_model(classes=0))
    visit = Visit(PageRuns(Handlers(service)))
    [facts] = on_loop(visit.handlers.start())["views"]
    uid, analysis = facts["uid"], service.cached(facts["uid"])
    named, prepared, prepare = visit.upload(picture.path, "my noise.png"), list[str](), service._prepared
    monkeypatch.setattr(service, "_prepared", lambda *given: prepared.append(given[1].name) or prepare(*given))
    rocket = vitviz.analyze(vitviz.weights.resources("assets") / "rocket.jpg", service.models.start)
    noise = vitviz.analyze(picture.path, service.models.start)
    for target, expected, name in (
        ({"like": "example:rocket.jpg"}, likeness(rocket), "likeness to rocket.jpg"),
        ({"like": named, "patch": [3, 5]}, likeness(noise, (3, 5)), "likeness to patch (3, 5) of my noise.png"),
        ({"patch": [0, 1]}, likeness(analysis, (0, 1)), "likeness to patch (0, 1) of this picture"),
    ):
        reply = visit.run("map", uid=uid, method="relevance", parameters={"target": target})
        found = analysis.map("relevance", target=expected).values.flatten()
        np.testing.assert_allclose(patches(reply, analysis), found, rtol=1e-3, atol=1e-6)
        ranked = visit.run("rank", uid=uid, target=target)
        assert (ranked["unit"], ranked["target_name"]) == ("score", name)
        np.testing.assert_allclose(ranked["drops"], analysis.head_effects(expected).drop, atol=1e-5)
        [row] = visit.run("switch", uid=uid, target=target, heads=[[1, 2]])["rows"]
        assert row["name"] == name
        assert row["before"] - row["after"] == pytest.approx(ranked["drops"][1][2], abs=1e-5)
    # The other picture was run once.
    assert prepared == ["rocket.jpg", "my noise.png"]
    assert (
        "this model has"
        in visit.run(
            "map", uid=uid, method="legrad", parameters={"target": {"like": "example:rocket.jpg", "patch": [99, 0]}}
        )["failed"]
    )
    gone = visit.run("map", uid=uid, method="legrad", parameters={"target": {"like": f"picture:{'x' * 22}"}})
    assert gone["failed"] == EXPIRED
    itself = visit.run("map", uid=uid, method="relevance", parameters={"target": {"like": "example:chelsea.jpg"}})
    assert itself["failed"].startswith("likeness to chelsea.jpg is 1 already")


def test_classes_are_compared(visit: Visit, uid: str, analysis: Analysis) -> None:
    for target, expected, name in (
        ({"class": 3, "against": "class 1"}, vitviz.contrast(3, 1), "class 3 against class 1"),
        ({"margin": True, "class": 2}, vitviz.margin(2), "class 2 against the best of the others"),
    ):
        reply = visit.run("map", uid=uid, method="legrad", parameters={"target": target})
        found = analysis.map("legrad", target=expected).values.flatten()
        np.testing.assert_allclose(patches(reply, analysis), found, rtol=1e-4, atol=1e-7)
        assert visit.run("rank", uid=uid, target=target)["target_name"] == name
    both = visit.run("rank", uid=uid, target={"class": 1, "against": "class 1"})
    assert both["failed"] == "contrast of class 1 with itself: expected two classes."
    mixed = visit.run("rank", uid=uid, target={"class": 1, "like": "example:rocket.jpg"})
    assert mixed["failed"].startswith("target: an object with 'class' or 'like'; expected {")


@pytest.mark.parametrize("kind", ["compare", "rank", "switch"])
def test_without_classes_nothing_can_be_measured(make_model: MakeModel, tmp_path: Path, kind: str) -> None:
    visit = Visit(PageRuns(Handlers(AnalysisService(make_model(classes=0)))))
    uid = on_loop(visit.handlers.start())["views"][0]["uid"]
    assert visit.run(kind, uid=uid)["failed"] == f"{NO_TARGET}."


def test_a_state_is_told_as_link_and_python(visit: Visit, uid: str) -> None:
    state = {**STATE, "views": [{**STATE["views"][0], "parameters": {"layer": 9, "head": -1}}]}
    answer = visit.ask("describe", state=state, uids=[uid])
    assert (
        answer["state"]["views"][0]["parameters"] == {"head": 3}
        and answer["link"] == "?method=attention&p.layer=2&p.query=cls&p.head=3"
    )
    assert answer["notes"] == ["Layer = 9: expected a whole number from -3 to 2. The default is shown."]
    assert 'analysis.map("attention", head=3)' in answer["python"]
    # Of an analysis that is gone, nothing is known that could be changed.
    gone = visit.ask("describe", state=state, uids=["gone"])
    assert gone["state"]["views"][0]["parameters"] == {"layer": 9, "head": -1} and gone["python"] == ""


def test_what_left_the_cache_is_told(visit: Visit) -> None:
    for kind in ("map", "compare", "rank", "switch"):
        assert visit.run(kind, uid="x" * 22, method="relevance")["expired"] is True
    assert visit.ask("map", uid="x" * 22, method="rollout") == {"expired": True}

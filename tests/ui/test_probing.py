"""What a page gets of a probe, and which refusals are final."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gradio.utils import get_upload_folder
from safetensors import safe_open

from tests.support.makers import MakeModel
from tests.support.visits import on_loop
from tests.ui.test_runs import Visit
from vitviz import Analysis, save_checkpoint
from vitviz.attention.sinks import OutlierRule, norms_of_patches
from vitviz.errors.kinds import LimitError
from vitviz.evaluation.probes import PROBES, probe
from vitviz.ui.facts import outliers
from vitviz.ui.handlers import Handlers
from vitviz.ui.pictures import Upload
from vitviz.ui.runs import PageRuns
from vitviz.ui.service import AnalysisService
from vitviz.ui.state import View


def made_file(reply: dict[str, Any]) -> Path:
    """The file that a reply names by its address."""
    return Path(get_upload_folder()).joinpath(*reply["address"].split("/")[1:])


@pytest.fixture
def visit(make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Visit:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    return Visit(PageRuns(Handlers(AnalysisService(make_model(register_tokens=1)))))


@pytest.fixture
def key(visit: Visit, picture: Upload) -> str:
    service = visit.handlers.service
    return on_loop(service.analyze(service.models.start, picture))[0]


def analysis_of(visit: Visit, key: str) -> Analysis:
    return visit.handlers.service.cached(key)


@pytest.mark.parametrize("name", PROBES)
def test_a_page_gets_what_a_probe_finds(visit: Visit, key: str, name: str) -> None:
    reply, findings = visit.run("probe", uid=key, probe=name), probe(analysis_of(visit, key), name)
    assert (reply["probe"], reply["summary"]) == (name, findings.summary)
    assert (reply["heading"], reply["rows"]) == (list(findings.heading), [list(row) for row in findings.rows])
    with safe_open(made_file(reply), "np") as file:
        about = {each: json.loads(text) for each, text in file.metadata().items()}
        assert set(file.keys()) == set(about) == set(findings.measurements)
        for each, measurement in findings.measurements.items():
            np.testing.assert_allclose(file.get_tensor(each), measurement.values.float().numpy(), atol=1e-6)
            assert about[each] == {
                "axes": list(measurement.axes),
                "quantity": measurement.quantity,
                "names": {axis: list(names) for axis, names in measurement.names.items()},
                "indexes": measurement.indexes,
                "is_flag": each == "outlier",
            }


def test_parameters_are_those_of_the_probe(visit: Visit, key: str) -> None:
    given = {"query": [1, 2], "layer": 0, "features": "keys"}
    reply = visit.run("probe", uid=key, probe="patch_similarity", parameters=given)
    expected = probe(analysis_of(visit, key), "patch_similarity", query=(1, 2), layer=0, features="keys")
    assert reply["summary"] == expected.summary
    with safe_open(made_file(reply), "np") as file:
        found = file.get_tensor("similarity")
    np.testing.assert_allclose(found, expected.measurements["similarity"].values.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"probe": "logitlens"}, "probe = 'logitlens': expected 'token_norms'"),
        ({"probe": 3}, "probe = 3: expected"),
        ({"probe": "patch_components", "parameters": {"layer": 3}}, "parameters.layer = 3: expected a whole number"),
        ({"probe": "patch_components", "parameters": {"query": "cls"}}, "parameters has no 'query'"),
        ({"probe": "patch_similarity", "parameters": {"query": [9, 9]}}, "parameters.query = [9, 9]"),
        ({"probe": "patch_similarity", "parameters": [1]}, "parameters = [1]: expected an object"),
    ],
)
def test_wrong_requests_are_one_sentence(visit: Visit, key: str, request_: dict[str, Any], words: str) -> None:
    reply = visit.run("probe", uid=key, **request_)
    assert words in reply["failed"] and reply["failed"].endswith((".", "?")) and reply["final"]


def test_what_a_model_cannot_have_is_said_with_the_model(make_model: MakeModel, picture: Upload) -> None:
    model = make_model(classes=0, cls_token=False, pooling="mean", rotary=True, heads=1, head_width=32)
    handlers = Handlers(AnalysisService(model))
    [facts] = on_loop(handlers.start())["models"].values()
    refusals = facts["probe_refusals"]
    assert list(refusals) == ["logit_lens", "prefix_mass", "head_similarity", "position_similarity"]
    for name, sentence in refusals.items():
        assert sentence == f"{PROBES[name].title}: {PROBES[name].refusal(model.network.config)}."
        reply = Visit(PageRuns(handlers)).run("probe", uid=on_loop(handlers.start())["views"][0]["uid"], probe=name)
        assert reply["failed"].endswith(sentence.partition(": ")[2]) and reply["final"]


def test_only_what_no_other_time_can_answer_is_final(visit: Visit, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert visit.ask("map", uid=key, method="rollouts")["final"]
    assert visit.run("map", uid=key, method="legrad", parameters={"target": 99})["final"]

    def full(*_: object) -> None:
        raise LimitError("no memory for this now")

    monkeypatch.setattr(visit.handlers.service, "run", full)
    reply = visit.run("probe", uid=key, probe="token_norms")
    assert (reply["failed"], reply["final"]) == ("no memory for this now.", False)
    assert visit.run("probe", uid="gone", probe="token_norms")["expired"]


@pytest.mark.parametrize("places", [(), ((1, 2),), ((0, 0), (3, 5))])
def test_outliers_are_counted_with_their_rule(
    make_model: MakeModel, picture: Upload, places: tuple[tuple[int, int], ...]
) -> None:
    model = make_model()
    for row, column in places:
        model.network.positions[row, column] *= 300
    service = AnalysisService(model)
    _, analysis = on_loop(service.analyze(service.models.start, picture))
    found = outliers(analysis.trace)
    assert found is not None and found["patches"] == [list(place) for place in places]
    limit = OutlierRule.of(norms_of_patches(analysis.trace)).threshold
    count = {0: "No patch is an outlier", 1: "1 of 24 patches is an outlier", 2: "2 of 24 patches are outliers"}
    assert found["about"].startswith(f"{count[len(places)]}: norm above {limit:.1f} where the tokens enter")


def test_a_state_keeps_the_probe_that_its_model_can_have(visit: Visit, key: str) -> None:
    state = {"views": [{"probe": "patch_similarity", "probe_parameters": {"query": "register 1", "layer": 2}}]}
    answer = visit.ask("describe", state=state, uids=[key])
    [view] = answer["state"]["views"]
    # The last layer is the default.
    assert (view["probe"], view["probe_parameters"]) == ("patch_similarity", {"query": "register 1"})
    assert {"probe=patch_similarity", "probe.query=register+1"} <= set(answer["link"].lstrip("?").split("&"))
    state = {"views": [{"probe": "patch_components", "probe_parameters": {"layer": 7}}]}
    answer = visit.ask("describe", state=state, uids=[key])
    assert answer["state"]["views"][0]["probe_parameters"] == {} and "Layer = 7" in answer["notes"][0]
    with pytest.raises(Exception, match="probe = 'x'"):
        View(probe="x")


def test_the_lines_of_python_find_the_same(visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    handlers = visit.handlers
    save_checkpoint(tmp_path / "small", handlers.service.models.start)
    [facts] = on_loop(handlers.start())["views"]
    view = {"probe": "patch_similarity", "probe_parameters": {"query": [1, 2], "layer": 0, "features": "keys"}}
    open_ = visit.ask("describe", state={"views": [view], "panel": "probes"}, uids=[facts["uid"]])
    names: dict[str, Any] = {}
    exec(open_["python"].replace('load("small")', 'load("./small")'), names)
    asked = {"query": (1, 2), "layer": 0, "features": "keys"}
    assert names["findings"].summary == probe(analysis_of(visit, facts["uid"]), "patch_similarity", **asked).summary
    # A closed panel is no part of them.
    assert "probe" not in visit.ask("describe", state={"views": [view]}, uids=[facts["uid"]])["python"]

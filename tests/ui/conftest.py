"""What several tests of the page share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client

import vitviz
import vitviz.ui.facts
import vitviz.ui.normalize
from tests.support.api_calls import PHOTO
from tests.support.page_states import KINDS, STEPS
from tests.support.visits import Make, Visit
from vitviz import Analysis
from vitviz.ui.handlers import Handlers
from vitviz.ui.normalize import ShownView
from vitviz.ui.runs import Runs
from vitviz.ui.service import AnalysisService
from vitviz.weights.model import Snapshots


@pytest.fixture(params=KINDS)
def seen(request: pytest.FixtureRequest, make_model: Make, monkeypatch: pytest.MonkeyPatch) -> ShownView:
    """A model of every kind, with a picture of other patches than those it was trained with."""
    model = make_model(**KINDS[request.param])
    monkeypatch.setattr(vitviz.ui.normalize, "reads_text", lambda model: request.param == "texts")
    if request.param == "snapshots":
        model = replace(model, snapshots=Snapshots(dict.fromkeys(STEPS, Path("none"))), step=STEPS[-1])
    return ShownView(model, model.network.config.layout(20, 28))


@pytest.fixture
def service(make_model: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AnalysisService:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    return AnalysisService(make_model())


@pytest.fixture
def visit(service: AnalysisService) -> Visit:
    return Visit(Runs(Handlers(service)))


@pytest.fixture
def first(visit: Visit) -> dict[str, Any]:
    """What the page shows first."""
    return visit.runs.handlers.first()


@pytest.fixture
def uid(first: dict[str, Any]) -> str:
    return first["views"][0]["uid"]


@pytest.fixture
def analysis(service: AnalysisService, uid: str) -> Analysis:
    found = service.cache.get(uid)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def client(address: str) -> Client:
    return Client(address, verbose=False)


@pytest.fixture(scope="module")
def found(client: Client) -> dict[str, Any]:
    """What /analyze says of the example."""
    return dict(client.predict(image=PHOTO, api_name="/analyze"))

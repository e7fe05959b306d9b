"""What several tests of the page share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from gradio_client import Client
from PIL import Image

from tests.support.api_calls import PHOTO
from tests.support.makers import MakeModel
from tests.support.page_states import KINDS, STEPS, shown
from tests.support.visits import Visit, on_loop
from tests.support.waiting import HANG_SECONDS
from vitviz import Analysis
from vitviz.ui.handlers import Handlers
from vitviz.ui.runs import PageRuns
from vitviz.ui.service import AnalysisService
from vitviz.weights.model import Snapshots
from vitviz.weights.text_tower import TextTower

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    # The package of a browser takes long to import, and most tests of this folder need none.
    from tests.ui.explorer.page_driver import Apps, SmallApp


@pytest.fixture(params=KINDS)
def seen(request: pytest.FixtureRequest, make_model: MakeModel) -> Analysis:
    """A model of every kind, with a picture of other patches than those it was trained with."""
    model = make_model(**KINDS[request.param])
    if request.param == "texts":
        model = replace(model, tower=TextTower(lambda text: torch.ones(model.network.config.width), 1.0, 0.0))
    if request.param == "snapshots":
        model = replace(model, snapshots=Snapshots(dict.fromkeys(STEPS, Path("none"))), step=STEPS[-1])
    return shown(model, 20, 28)


@pytest.fixture
def service(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AnalysisService:
    """Of a small random model, or of that whose fixture a test names."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    name = getattr(request, "param", None)
    return AnalysisService(make_model() if name is None else request.getfixturevalue(name))


@pytest.fixture
def visit(service: AnalysisService) -> Visit:
    return Visit(PageRuns(Handlers(service)))


@pytest.fixture
def first(visit: Visit) -> dict[str, Any]:
    """What the page shows first."""
    return on_loop(visit.handlers.start())


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
    return Client(address, verbose=False, httpx_kwargs={"timeout": HANG_SECONDS})


@pytest.fixture(scope="module")
def found(client: Client) -> dict[str, Any]:
    """What /analyze says of the example."""
    return dict(client.predict(image=PHOTO, api_name="/analyze"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of what is kept and of lines, in its only item."""
    now = [100.0]
    times = SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: now[0])
    for module in ("holdings", "server.line"):
        monkeypatch.setattr(f"vitviz.ui.{module}.time", times)
    return now


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A picture larger than the page draws it."""
    noise = np.random.default_rng(1).integers(0, 255, (4, 9, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((900, 400)).save(tmp_path / "wide.png")
    return tmp_path / "wide.png"


# Apps of small networks.


@pytest.fixture(scope="session")
def apps() -> Iterator[Apps]:
    """Apps of small networks by the names of their models, each started when it is first asked for."""
    from tests.ui.explorer.page_driver import MODELS, small_app

    running: dict[str, SmallApp] = {}
    with ExitStack() as stack:

        def app(name: str) -> SmallApp:
            if name not in running:
                running[name] = stack.enter_context(small_app(MODELS[name]()))
            return running[name]

        yield app


@pytest.fixture
def tiny(apps: Apps) -> SmallApp:
    return apps("tiny")


@pytest.fixture
def cifar(apps: Apps) -> SmallApp:
    return apps("cifar")


@pytest.fixture
def registers(apps: Apps) -> SmallApp:
    return apps("registers")


@pytest.fixture
def cifar_page(browser: Browser, cifar: SmallApp) -> Iterator[Page]:
    from tests.driver import page_at

    with page_at(browser, cifar.address) as found:
        yield found


@pytest.fixture
def registers_page(browser: Browser, registers: SmallApp) -> Iterator[Page]:
    from tests.driver import page_at

    with page_at(browser, registers.address) as found:
        yield found

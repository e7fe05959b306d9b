"""The app and the visitor's own device: where pictures are computed, and the way between the two."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, expect
from starlette.applications import Starlette
from starlette.testclient import TestClient

import vitviz
from tests.driver import (
    Watched,
    ask,
    canvas_values,
    choose_layout,
    click_patch,
    first_view,
    new_context,
    notice,
    open_menu,
    open_panel,
    settle,
)
from tests.ui.explorer.page_driver import EXPLORER, SHAPES, SmallApp, made, small_app
from vitviz import Analysis, ConfigError, Model
from vitviz.ui import build_demo
from vitviz.ui.device import device_models
from vitviz.ui.handlers import Handlers
from vitviz.ui.page_routes import PageRoutes
from vitviz.ui.server.settings import ServerSettings
from vitviz.ui.service import AnalysisService

TOLERANCE = 1e-4
SERVER, DEVICE = re.compile(r":\d+/(\?.*)?$"), re.compile(r"/device/$")
PLACE = ".vx-pictures .vx-place"


@pytest.fixture(scope="module")
def app() -> Iterator[SmallApp]:
    with small_app(made(*SHAPES["registers"]), ServerSettings(device_models=("start",))) as running:
        yield running


class Visitor(Watched):
    """A visitor with a browser of their own."""

    def __init__(self, context: BrowserContext, app: SmallApp, link: str = "") -> None:
        super().__init__(context.new_page())
        self.page.goto(f"{app.address}/{link}")
        settle(self.page)

    def asked(self) -> set[tuple[str, str]]:
        """The methods and paths of all requests to the app, but the search that goes on while nothing is asked."""
        asked = [each for each in self.requests if b'"flip"' not in (each.post_data_buffer or b"")]
        parts = [(each.method, urlsplit(each.url)) for each in asked]
        return {(method, url.path) for method, url in parts if url.scheme not in ("blob", "data")}

    def switch(self, place: re.Pattern[str]) -> None:
        """Let the other place compute, by the button of the picture's menu."""
        open_menu(self.page, "pictures")
        self.page.locator(PLACE).click()
        self.page.wait_for_url(place)
        settle(self.page)

    def refuse(self, path: Path) -> None:
        """Give the page a file that no browser opens as a picture."""
        path.write_text("no picture")
        self.page.set_input_files(".vx-pictures .vx-file", path)
        expect(notice(self.page)).to_contain_text("this browser cannot open it as a picture")

    def give(self, path: Path) -> None:
        self.page.set_input_files(".vx-pictures .vx-file", path)
        expect(self.page.locator(".vx-badge").first).to_contain_text(path.name)
        settle(self.page)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    # The page's own policy is in force.
    with new_context(browser, viewport={"width": 1400, "height": 1000}) as context:
        yield context


def picture(path: Path, seed: int) -> Path:
    """A picture of no file of the app's, on which both places agree."""
    levels = np.random.default_rng(seed).integers(0, 256, (24, 40, 3), np.uint8)
    Image.fromarray(levels).resize((240, 144), Image.Resampling.NEAREST).save(path)
    return path


def show(page: Page, method: str) -> None:
    page.evaluate(f"{EXPLORER}.store.patchView(0, {{ method: '{method}', parameters: {{}} }})")
    settle(page)


def check(page: Page, analysis: Analysis) -> None:
    """The page shows the rollout of its chosen patch, or of CLS."""
    query = first_view(page)["parameters"].get("query")
    expected = analysis.rollout(query=query and tuple(query))
    values = canvas_values(page)[analysis.trace.layout.prefix_count :]
    np.testing.assert_allclose(values, expected.numpy().ravel(), atol=TOLERANCE)


@pytest.mark.browser
def test_what_is_shown_goes_to_the_device_and_nothing_is_sent_until_it_comes_back(
    context: BrowserContext, app: SmallApp, tmp_path: Path
) -> None:
    first, second = picture(tmp_path / "first.png", 0), picture(tmp_path / "second.png", 1)
    analysis, other = vitviz.analyze(first, app.model), vitviz.analyze(second, app.model)
    visitor = Visitor(context, app)
    page, hint = visitor.page, visitor.page.locator(".vx-pictures .vx-hint").first
    visitor.give(first)
    ask(page, "layers")
    click_patch(page, analysis, 2, 3)
    # Until somebody chooses it, nothing of it is loaded.
    assert not [path for _, path in visitor.asked() if path.startswith("/device")]
    expect(hint).to_contain_text("It goes to the server that runs this page.")
    visitor.requests.clear()
    visitor.switch(DEVICE)
    expect(notice(page)).to_contain_text("Your pictures stay on this device now.")
    assert (first_view(page)["method"], first_view(page)["parameters"]) == ("rollout", {"query": [2, 3]})
    check(page, analysis)
    expect(hint).to_contain_text("It stays on this device")
    # All that a visitor does there.
    visitor.give(second)
    check(page, other)
    click_patch(page, other, 2, 3)
    check(page, other)
    show(page, "relevance")
    ask(page, "hide")
    click_patch(page, other, 1, 1)
    choose_layout(page, "two")
    page.locator(".vx-compare-end").click()
    open_panel(page, "probes")
    visitor.refuse(tmp_path / "notes.txt")
    expect(page.get_by_role("button", name="Send it to the server")).to_be_visible()
    expect(page.locator(".vx-absent")).to_contain_text(
        re.compile("Only the app computes .*attention flow.*maps about a text")
    )
    others = {path for method, path in visitor.asked() if method != "GET" or not path.startswith("/device/")}
    # The server's page asks for the picture that it hands on, and ends its runs.
    assert [path for path in others if not re.fullmatch(r"/end|/files/[^/]+/picture", path)] == []
    # The visitor switches back.
    visitor.requests.clear()
    show(page, "rollout")
    expect(page.locator(PLACE)).to_have_text("Send this picture to the server, which does more")
    visitor.switch(SERVER)
    assert ("POST", "/upload") in visitor.asked() and first_view(page)["method"] == "rollout"
    expect(page.locator(".vx-badge").first).to_contain_text("second.png")
    # Nothing of it stays in the browser, but that its opening was seen.
    kept = "async () => [(await indexedDB.databases()).length, Object.keys(sessionStorage)]"
    assert page.evaluate(kept) == [0, ["vitviz-opening-seen"]]
    assert visitor.errors == []


@pytest.mark.browser
def test_the_choice_is_remembered_and_no_picture_goes_to_the_server_from_a_link(
    context: BrowserContext, app: SmallApp, tmp_path: Path
) -> None:
    visitor = Visitor(context, app)
    # Flow is the server's.
    show(visitor.page, "attention_flow")
    visitor.switch(DEVICE)
    expect(notice(visitor.page)).to_contain_text("Only the server computes the map that was shown.")
    assert first_view(visitor.page)["method"] == "attention"
    # Another visit.
    page = Visitor(context, app).page
    assert DEVICE.search(page.url)
    # A link is shown by the server, but a picture that is given there goes to the device.
    linked = Visitor(context, app, "?method=attention_flow")
    assert first_view(linked.page)["method"] == "attention_flow"
    linked.requests.clear()
    expect(linked.page.locator(".vx-goal")).to_contain_text("It stays on this device")
    linked.give(picture(tmp_path / "given.png", 2))
    assert DEVICE.search(linked.page.url)
    expect(notice(linked.page)).to_contain_text("Only the server computes the map that was shown.")
    assert {path for method, path in linked.asked() if method == "POST"} <= {"/end", "/describe"}
    # Back on the server, the next visit begins there.
    linked.switch(SERVER)
    expect(linked.page.locator(".vx-badge").first).to_contain_text("given.png")
    assert not DEVICE.search(Visitor(context, app).page.url)


@pytest.mark.browser
def test_what_is_alike_goes_to_the_device_with_its_layer_and_square(context: BrowserContext, app: SmallApp) -> None:
    visitor = Visitor(context, app, "?layout=alike&second.example=astronaut.jpg&alike-layer=1&second.alike=2.3")
    visitor.switch(DEVICE)
    state = visitor.page.evaluate(f"{EXPLORER}.store.state")
    assert (state["layout"], state["alike_layer"]) == ("alike", 1)
    assert [(view["picture"], view["alike"]) for view in state["views"]] == [
        ("example:chelsea.jpg", None),
        ("example:astronaut.jpg", [2, 3]),
    ]
    expect(visitor.page.locator(".vx-badge").nth(1)).to_contain_text("after layer 1")


@pytest.mark.browser
def test_a_file_that_the_server_is_to_open_goes_there_alone(
    context: BrowserContext, app: SmallApp, tmp_path: Path
) -> None:
    visitor = Visitor(context, app)
    page = visitor.page
    visitor.switch(DEVICE)
    visitor.give(picture(tmp_path / "private.png", 3))
    # What is sent by a button is in its name.
    (tmp_path / "weights.pth").write_bytes(b"weights")
    page.set_input_files(".vx-pictures .vx-file", tmp_path / "weights.pth")
    expect(page.get_by_role("button", name="Use the server, and send it this picture")).to_be_visible()
    visitor.refuse(tmp_path / "notes.txt")
    uploads: list[str] = []
    page.on("request", lambda request: uploads.append(request.url) if "/upload" in request.url else None)
    page.get_by_role("button", name="Send it to the server").click()
    page.wait_for_url(SERVER)
    expect(notice(page)).to_contain_text("notes.txt")
    settle(page)
    assert len(uploads) == 1 and "notes.txt" in uploads[0]


# Another tab, which is about to hand a picture on, and one that was closed before it did.
LEFT = """async () => {
  const names = [Date.now(), 0].map((time) => `vitviz.handover.${time}.other`);
  for (const name of names) await new Promise((done) => {
    const opening = indexedDB.open(name);
    opening.onupgradeneeded = () => opening.result.createObjectStore("pictures").put({ given: new File(["x"], "left.png") }, "pictures");
    opening.onsuccess = () => done(opening.result.close());
  });
}"""


@pytest.mark.browser
def test_no_page_takes_a_picture_that_another_tab_hands_on(context: BrowserContext, app: SmallApp) -> None:
    visitor = Visitor(context, app)
    visitor.page.evaluate(LEFT)
    visitor.switch(DEVICE)
    visitor.switch(SERVER)
    expect(notice(visitor.page)).to_contain_text("Your pictures go to the server now.")
    assert ("POST", "/upload") not in visitor.asked()
    assert visitor.page.evaluate("async () => (await indexedDB.databases()).map(({ version }) => version)") == [1]


def test_its_files_are_made_once_and_never_change(service: AnalysisService, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = Handlers(service, ("",))
    with TestClient(Starlette(routes=PageRoutes(handlers).routes)) as client:
        page = client.get("/device/")
        assert page.headers["cache-control"] == "no-cache" and page.headers["content-encoding"] == "gzip"
        (folder,) = set(re.findall(r"files-\w+/", page.text))
        for name in ("page.js", "analysis_worker.js", "kernels.wasm", "model-0.gz", "picture-0"):
            answer = client.get(f"/device/{folder}{name}")
            assert "immutable" in answer.headers["cache-control"], name
        assert client.get("/device/").text == page.text
        assert client.get("/device/files-0/page.js").status_code == 404
        # They stay when uploads are old.
        service.folder.sizes.drop_unused(0)
        assert client.get(f"/device/{folder}model-0.gz").status_code == 200
    routes = PageRoutes(Handlers(service)).routes
    with TestClient(Starlette(routes=routes)) as client:
        assert client.get("/device/").status_code == 404


def test_weights_are_sent_to_visitors_if_they_are_the_bundled_ones_or_a_setting_names_them(bundled: Model) -> None:
    small = made(*SHAPES["cifar"])
    assert device_models(bundled, None) == ("",) and device_models(small, None) == ()
    assert device_models(bundled, ("none",)) == ()
    assert device_models(small, ("start", "vitviz-photos")) == ("", "vitviz-photos")
    # Another network of the same name.
    assert device_models(vitviz.Model(bundled.name, small.network, small.preprocessing, small.labels), None) == ()
    small.own_network(small.name).set_precision("bfloat16")
    with pytest.raises(ConfigError, match="small computes in bfloat16, and the page in float32"):
        build_demo(small, ServerSettings(device_models=("start",)))

"""Models on the page: the menu, a download from a hub on this machine, and checkpoints of the visitor's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page, expect
from safetensors.torch import save_file

import vitviz
from tests.driver import (
    EXPLORER,
    canvas,
    choose_layout,
    choose_method,
    choose_model,
    click_patch,
    first_view,
    is_run,
    notice,
    open_link,
    open_menu,
    open_panel,
    opened_page,
    set_slider,
    settle,
    state,
)
from tests.hub_server import HubServer
from tests.parity.timm_cases import TOLD
from tests.parity.timm_cases import make as make_timm
from tests.parity.transformers_cases import make as make_transformers
from tests.reference_packages import timm, transformers
from tests.support.example import EXAMPLE
from tests.ui.answers import Library, check_page
from tests.ui.explorer.page_driver import small_app
from vitviz import METHODS, Model, save_checkpoint
from vitviz.ui import service
from vitviz.weights import ZOO
from vitviz.weights.snapshots import snapshot_path
from vitviz.worker import Worker, shared_worker

pytestmark = pytest.mark.browser

DINO = ZOO["dino_vits16"]
CLIP = ZOO["clip_vitb32_laion"]
STEPS = (0, 20, 1000)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint as timm publishes DINO's: without a classifier, as wide as its ViT-S/16."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("published")
    small = {"embed_dim": 384, "num_heads": 6, "depth": 2, "num_classes": 0, "mlp_ratio": 1, "img_size": 64}
    small["dynamic_img_size"] = False
    make_timm(folder, architecture="vit_small_patch16_224", **small)
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
    (folder / "pytorch_model.bin").unlink()
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def server(published: Path) -> Iterator[HubServer]:
    with HubServer() as found:
        files = {path.name: path.read_bytes() for path in published.iterdir()}
        found.add(DINO.repository, files)
        yield found


@pytest.fixture(scope="module")
def address(server: HubServer, bundled: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        server.use(patch, home)
        for name, value in {"HF_ENDPOINT": server.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}.items():
            patch.setenv(name, value)
        # What was downloaded is opened in processes that look for it in the same place; those of other tests go on.
        worker = Worker()
        worker.preload = shared_worker().preload
        patch.setattr(service, "shared_worker", lambda: worker)
        with small_app(bundled) as app:
            yield app.address
        worker.close()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier as transformers' ``save_pretrained`` writes it, with its preprocessing beside it."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("own")
    names = {0: "a | pipe", 1: "<b>bold</b>", 2: "crane", 3: "crane", 4: "plain"}
    make_transformers(folder, "ViTForImageClassification", "ViTConfig", id2label=names)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def library(bundled: Model, published: Path) -> Library:
    return Library(bundled, {DINO.name: vitviz.load(published)})


def name_of(page: Page) -> str:
    return page.locator(".vx-model-name").inner_text()


def open_own(page: Page, *paths: Path, hub: str = "", overrides: str = "") -> None:
    """Hand over a checkpoint or its folder, and wait until it is shown, or until the page says why it is not."""
    for part, text in ((".vx-models", ".vx-models > summary"), (".vx-own", ".vx-own > summary")):
        if page.locator(part).get_attribute("open") is None:
            page.locator(text).click()
    folders = [path for path in paths if path.is_dir()]
    page.locator(".vx-own-files").set_input_files([] if folders else paths)
    if folders:
        page.locator(".vx-own-folder").set_input_files(folders)
    page.locator(".vx-own-hub").fill(hub)
    page.locator(".vx-own-overrides").fill(overrides)
    with page.expect_request(is_run):
        page.locator(".vx-own-open").click()
    settle(page)


# ---- the menu ----


def test_a_named_model_is_downloaded_and_shown(page: Page, published: Path, library: Library) -> None:
    choose_model(page, DINO.name)
    assert f"model={DINO.name}" in page.url and name_of(page) == DINO.title
    expect(page.locator(".vx-predictions-part")).not_to_be_visible()
    offered = page.locator(".vx-method option").evaluate_all("all => all.map((option) => option.value)")
    # It has no classes: a map for one is about being like a picture.
    assert {"rollout", *(name for name, method in METHODS.items() if method.class_specific)} <= set(offered)
    text = " ".join(open_panel(page, "model").locator("dl").inner_text().split())
    for fact in (DINO.known_for, DINO.licence, DINO.repository, "layers 2", "prefix tokens cls"):
        assert " ".join(fact.split()) in text, fact
    # Its controls are those of this model.
    choose_method(page, "attention")
    expect(page.locator('.vx-parameter[data-name="layer"] input')).to_have_attribute("max", "1")
    expect(page.locator('.vx-parameter[data-name="head"] input')).to_have_count(3 + 6)
    set_slider(page, "layer", 0)
    click_patch(page, vitviz.analyze(EXAMPLE, vitviz.load(published)), 2, 2)
    assert first_view(page)["parameters"] == {"layer": 0, "query": [2, 2]}
    check_page(page, library)
    # Another model has other layers: what was chosen of them does not mean the same there.
    choose_model(page, "")
    check_page(page, library)
    assert "layer" not in first_view(page)["parameters"]
    # Beside another map, it does.
    set_slider(page, "layer", 0)
    choose_layout(page, "two")
    canvas(page, 1).click()
    choose_model(page, DINO.name)
    assert [view["parameters"]["layer"] for view in state(page)["views"]] == [0, 0]
    choose_layout(page, "one")
    # By its name on the hub.
    open_own(page, hub="nobody/nothing")
    expect(notice(page)).to_contain_text("nobody/nothing")
    assert first_view(page)["model"] == ""
    open_own(page, hub=DINO.repository)
    assert first_view(page)["model"] == f"hf:{DINO.repository}" and name_of(page) == DINO.repository


# ---- a checkpoint of one's own ----


def test_a_checkpoint_of_ones_own_with_its_files(page: Page, own: Path, library: Library) -> None:
    open_own(page, own)
    model = vitviz.load(own)
    token = first_view(page)["model"]
    assert re.fullmatch(r"own:[\w-]{22}", token)
    mine = Library(library.model(vitviz.ui.state.View()), {token: model})
    check_page(page, mine)
    # A folder goes by its own name.
    assert name_of(page) == own.name
    expect(page.locator(".vx-classes")).to_contain_text("a | pipe, <b>bold</b>, crane (2), crane (3), plain")
    # Two classes of one name stay two, told apart by their numbers; names are text, whatever is in them.
    predicted = page.locator(".vx-predictions")
    for text in ("crane (2)", "crane (3)", "<b>bold</b>"):
        expect(predicted).to_contain_text(text)
    choose_method(page, "relevance")
    page.locator('.vx-predictions button[data-index="3"]').click()
    check_page(page, mine)
    assert page.locator(".vx-target").input_value() == "crane (3)"
    # Its link is not a key to it: elsewhere the page says what is missing, and the Python names the file.
    assert f"own={own.name}" in page.url and token.removeprefix("own:") not in page.url
    panel = open_panel(page, "save")
    panel.locator("[data-act=link]").click()
    expect(panel.locator(".vx-said")).to_contain_text("Your own checkpoint is not part of it")
    panel.locator("[data-act=python]").click()
    expect(panel.locator(".vx-code")).to_contain_text(f'vitviz.load("{own.name}")')
    open_link(page, page.url)
    expect(notice(page)).to_contain_text(own.name)
    expect(notice(page)).to_contain_text("Open it so under Model to see the same.")
    expect(page.locator(".vx-status").first).to_contain_text(own.name)
    assert page.evaluate(f"{EXPLORER}.panes[0].facts") is None
    open_own(page, own)
    check_page(page, Library(library.model(vitviz.ui.state.View()), {first_view(page)["model"]: model}))


def test_what_a_file_leaves_open_is_asked_for_and_can_be_said(page: Page, own: Path, tmp_path: Path) -> None:
    weights = tmp_path / "mine.safetensors"
    weights.write_bytes((own / "model.safetensors").read_bytes())
    open_own(page, weights)
    expect(notice(page)).to_contain_text("the file leaves facts open")
    # The form is still open, with the file, and takes what is asked for.
    expect(page.locator(".vx-own-chosen")).to_have_text("mine.safetensors")
    expect(page.locator(".vx-own-overrides")).to_be_visible()
    stated = {**TOLD, "image_size": 32, "labels": "a,b,c,d,e"}
    open_own(page, weights, overrides=", ".join(f"{fact}={value}" for fact, value in stated.items()))
    expect(notice(page)).to_contain_text("Assumed: preprocessing (ViTImageProcessor's defaults); details under")
    model = vitviz.load(weights, **TOLD, image_size=32, labels=list("abcde"))
    check_page(page, Library(vitviz.load(), {first_view(page)["model"]: model}))
    assert name_of(page) == "mine.safetensors"
    # A plain file of weights offers the architectures that fit.
    torch.manual_seed(0)
    save_file(timm.create_model("vit_tiny_patch16_224", num_classes=5).state_dict(), weights)
    open_own(page, weights)
    page.get_by_role("button", name="Open as vit_tiny_patch16_224", exact=True).click()
    settle(page)
    expect(notice(page)).to_contain_text("Assumed: preprocessing (timm's default for vit_tiny_patch16_224); details")
    model = vitviz.load(weights, architecture="vit_tiny_patch16_224")
    check_page(page, Library(vitviz.load(), {first_view(page)["model"]: model}))


# ---- states of a training, and pictures of another kind ----


def test_a_slider_goes_through_training_and_asks_every_state_the_same(
    browser: Browser, make_model: Callable[..., Model], tmp_path: Path
) -> None:
    folder = tmp_path / "mine" / "snapshots"
    folder.mkdir(parents=True)
    for step in STEPS:
        save_checkpoint(snapshot_path(folder, step), make_model())
    model = vitviz.load(folder)
    library = Library(model)
    with small_app(model) as app, opened_page(browser, app.address, "p.layer=0") as page:
        part, slider = page.locator(".vx-steps"), page.locator(".vx-step")

        def check(step: int, text: str) -> None:
            check_page(page, library)
            expect(part).to_contain_text(f"Training step {text} of 1,000")
            # The last is what opens without a step.
            assert first_view(page)["step"] == (None if step == STEPS[-1] else step)
            assert ("step=" in page.url) == (step != STEPS[-1]) and first_view(page)["parameters"] == {"layer": 0}

        check(1000, "1,000")
        open_menu(page, "models")
        slider.focus()
        for step in (20, 0):
            page.keyboard.press("ArrowLeft")
            check(step, str(step))
        open_link(page, page.url)
        check(0, "0")
        expect(slider).to_have_value("0")
        open_menu(page, "models")
        slider.focus()
        for _ in STEPS:
            page.keyboard.press("ArrowRight")
        check(1000, "1,000")

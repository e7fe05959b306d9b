"""Models in the app: the menu, a download from a hub on this machine, and checkpoints of the user's own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Page, expect
from safetensors.torch import save_file

import vitviz
from tests.driver import (
    ARTEFACTS,
    ROOT,
    canvas,
    caption,
    click_at,
    expect_map,
    expect_picture,
    running_app,
    set_slider,
)
from tests.hub_server import HubServer
from tests.parity.timm_cases import TOLD
from tests.parity.timm_cases import make as make_timm
from tests.parity.transformers_cases import make as make_transformers
from tests.reference_packages import transformers
from vitviz import METHODS, Analysis, Style
from vitviz.weights import ZOO

pytestmark = pytest.mark.browser

EXAMPLE = ROOT / "assets" / "chelsea.jpg"
DINO = ZOO["dino_vits16"]
CLIP = ZOO["clip_vitb32_laion"]


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
        found.add(DINO.repository, files, lfs=("model.safetensors",))
        yield found


@pytest.fixture(scope="module")
def address(server: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    environment = {**os.environ, **server.environment(tmp_path_factory.mktemp("home")), "HF_HUB_OFFLINE": "0"}
    with running_app(environment) as found:
        yield found


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier as transformers' ``save_pretrained`` writes it, with its preprocessing beside it."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("own")
    names = {0: "a | pipe", 1: "<b>bold</b>", 2: "crane", 3: "crane", 4: "plain"}
    make_transformers(folder, "ViTForImageClassification", "ViTConfig", id2label=names)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def menu(page: Page) -> str:
    return page.locator("#vv-model input").input_value()


def choose(page: Page, text: str) -> None:
    page.locator("#vv-model input").click()
    page.get_by_role("option", name=text).click()


def open_own(page: Page, *paths: Path) -> None:
    page.get_by_text("Your own checkpoint", exact=True).click()
    page.locator("#vv-files input[type=file]").set_input_files(paths)
    expect(page.locator("#vv-files tbody tr")).to_have_count(len(paths))
    page.locator("#vv-open").click()


def test_the_menu_lists_every_named_model_with_what_it_costs(page: Page) -> None:
    assert menu(page) == "vitviz · vitviz-cifar10 · ready"
    page.locator("#vv-model input").click()
    options = [option.strip().removeprefix("✓").strip() for option in page.get_by_role("option").all_inner_texts()]
    costs = {name: f"{model.family} · {model.title} · {model.megabytes:,.0f} MB" for name, model in ZOO.items()}
    listed = [re.sub(" · ready$", "", option) for option in options[1:]]
    assert listed == [text if text in options else text.rpartition(" · ")[0] for text in costs.values()]
    page.screenshot(path=ARTEFACTS / "menu.png")


def test_a_named_model_is_downloaded_and_shown(page: Page, published: Path, server: HubServer) -> None:
    choose(page, f"{DINO.family} · {DINO.title} ·")
    analysis = vitviz.analyze(EXAMPLE, vitviz.load(published))
    expect_map(page, analysis.attention())
    expect_picture(page, analysis.attention(), Style(grid=True))
    expect(page.locator("#vv-aside")).to_contain_text("no classifier")
    expect(page.locator("#vv-predictions")).not_to_contain_text("%")
    refused = page.locator("#vv-refused")
    titles = ", ".join(method.title for method in METHODS.values() if method.class_specific)
    expect(refused).to_contain_text(f"Not here: {titles}: this model has no classifier")
    expect(page.locator("#vv-method label")).to_have_count(4)
    assert menu(page) == f"{DINO.family} · {DINO.title} · ready"
    page.get_by_text("About this model", exact=True).click()
    card = page.locator("#vv-card")
    for fact in (DINO.known_for, DINO.licence, DINO.repository, "layers: 2", "prefix tokens: cls"):
        expect(card).to_contain_text(fact)
    # Its controls are those of this model.
    expect(page.locator("#vv-attention-layer input[type=number]")).to_have_attribute("max", "1")
    expect(page.locator("#vv-attention-head label")).to_have_count(3 + 6)
    set_slider(page, "vv-attention-layer", 0)
    expect_map(page, analysis.attention(layer=0))
    click_at(canvas(page), 0.52, 0.52)
    expect(caption(page)).to_contain_text("What patch (4, 4) looks at")
    page.screenshot(path=ARTEFACTS / "named.png", full_page=True)


def test_a_model_that_cannot_be_downloaded_leaves_the_one_before(
    page: Page, server: HubServer, example: Analysis
) -> None:
    expect_map(page, example.attention())
    choose(page, f"{CLIP.family} · {CLIP.title} ·")
    expect(page.locator("#vv-notice")).to_contain_text(CLIP.repository)
    expect(page.locator("#vv-notice")).to_contain_text("Below is still the model before")
    expect_map(page, example.attention())
    expect(page.locator("#vv-model input")).to_have_value("vitviz · vitviz-cifar10 · ready")


def test_a_checkpoint_of_ones_own_with_its_files(page: Page, own: Path) -> None:
    open_own(page, *sorted(own.iterdir()))
    model = vitviz.load(own)
    analysis = vitviz.analyze(EXAMPLE, model)
    expect_map(page, analysis.attention())
    expect_picture(page, analysis.attention(), Style(grid=True))
    expect(page.locator("#vv-aside")).to_contain_text("a | pipe, <b>bold</b>, crane, crane, plain")
    predicted = page.locator("#vv-predictions")
    # Two classes of one name stay two, told apart by their numbers; names are text, whatever is in them.
    for text in ("crane (2)", "crane (3)", "<b>bold</b>"):
        expect(predicted).to_contain_text(text)
    expect(page.locator("#vv-model input")).to_have_value("yours · model")
    page.screenshot(path=ARTEFACTS / "own.png", full_page=True)
    choose(page, "vitviz · vitviz-cifar10 · ready")
    expect_map(page, vitviz.analyze(EXAMPLE, vitviz.load()).attention())


def test_what_a_file_leaves_open_is_asked_for_and_can_be_said(page: Page, own: Path, tmp_path: Path) -> None:
    weights = tmp_path / "mine.safetensors"
    weights.write_bytes((own / "model.safetensors").read_bytes())
    open_own(page, weights)
    expect(page.locator("#vv-notice")).to_contain_text("its file does not say it all")
    overrides = ", ".join(f"{fact}={value}" for fact, value in {**TOLD, "image_size": 32}.items())
    page.locator("#vv-facts input, #vv-facts textarea").fill(overrides)
    page.locator("#vv-open").click()
    expect(page.locator("#vv-notice")).to_be_hidden()
    model = vitviz.load(weights, **TOLD, image_size=32)
    expect_map(page, vitviz.analyze(EXAMPLE, model).attention())


def test_a_file_that_is_no_checkpoint_is_refused_in_one_sentence(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "*evil*.pth"
    path.write_bytes(b"<html>not weights</html>")
    open_own(page, path)
    notice = page.locator("#vv-notice")
    expect(notice).to_contain_text("Below is still the model before")
    assert "Traceback" not in notice.inner_text()
    assert str(tmp_path) not in notice.inner_text()


def test_a_model_by_its_name_on_the_hub(page: Page, published: Path) -> None:
    page.get_by_text("Your own checkpoint", exact=True).click()
    name = page.locator("#vv-hub input, #vv-hub textarea")
    name.fill("nobody/nothing")
    name.press("Enter")
    expect(page.locator("#vv-notice")).to_contain_text("nobody/nothing")
    name.fill(DINO.repository)
    name.press("Enter")
    expect_map(page, vitviz.analyze(EXAMPLE, vitviz.load(published)).attention())
    expect(page.locator("#vv-model input")).to_have_value(f"yours · {DINO.repository}")


def test_nothing_to_open_is_said(page: Page) -> None:
    page.get_by_text("Your own checkpoint", exact=True).click()
    page.locator("#vv-open").click()
    expect(page.locator("#vv-notice")).to_contain_text("expected either its file, or its name on the hub")

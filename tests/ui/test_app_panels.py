"""The panels below the picture, driven in a headless browser: all maps side by side, and what is switched off."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Locator, Page, expect

import vitviz
from tests.driver import (
    ARTEFACTS,
    EXAMPLE,
    ROOT,
    click_at,
    expect_map,
    open_panel,
    opened_page,
    running_app,
    set_slider,
)
from tests.towers import make_transformers
from vitviz import METHODS, Analysis, Model
from vitviz.evaluation.comparison import Comparison, compare
from vitviz.metrics.faithfulness import METRICS
from vitviz.visualization.figures import switches_sheet
from vitviz.weights.text_tower import open_text_tower

pytestmark = pytest.mark.browser

# The bundled model has a CLS token and no attention pooling.
SERVING = [name for name in METHODS if name != "pooling_attention"]


def cards(page: Page) -> Locator:
    return page.locator(".vv-card")


def order(page: Page) -> list[str]:
    return [str(cards(page).nth(number).get_attribute("data-method")) for number in range(cards(page).count())]


def choose_order(page: Page, title: str) -> None:
    page.locator("#vv-compare-order input").click()
    page.get_by_role("option", name=title).click()


def expect_scores(page: Page, found: Comparison) -> None:
    for each in found.maps:
        card = page.locator(f'.vv-card[data-method="{each.method}"]')
        expect(card).to_contain_text(METHODS[each.method].title)
        expect(card).to_contain_text(METHODS[each.method].interpretation)
        for metric, area in each.areas.items():
            mark = "▲" if found.beats_chance(each, metric) else "▼"
            expect(card.get_by_role("row", name=METRICS[metric].title).last).to_contain_text(f"{area:.3f} {mark}")


@pytest.fixture
def coarsest_page(browser: Browser, address: str, coarsest_example: Analysis) -> Iterator[Page]:
    with opened_page(browser, address, "resolution=16") as found:
        expect_map(found, coarsest_example.attention())
        yield found


def test_all_maps_stand_side_by_side_with_their_scores(coarsest_page: Page, coarsest_example: Analysis) -> None:
    page, example = coarsest_page, coarsest_example
    open_panel(page, "vv-compare")
    page.locator("#vv-compare-start").click()
    expect(cards(page)).to_have_count(len(SERVING))
    found = compare(example)
    assert order(page) == SERVING
    expect_scores(page, found)
    panel = page.locator("#vv-cards")
    expect(panel).to_contain_text(f"class {example.predictions(1)[0].label}")
    expect(panel).to_contain_text(f"{found.highest:.1%}")
    for metric in METRICS.values():
        choose_order(page, f"best by {metric.title}")
        expect(panel).to_contain_text(f"best first by {metric.title}: {metric.interpretation}")
        assert order(page) == [each.method for each in found.by(metric.name)]
    page.locator("#vv-compare").screenshot(path=ARTEFACTS / "compare.png")


def test_what_is_compared_is_what_the_controls_say(coarsest_page: Page, coarsest_example: Analysis) -> None:
    page, example = coarsest_page, coarsest_example
    second = example.predictions(2)[1].label
    page.locator("#vv-predictions").get_by_role("button", name=second).click()
    # The click chooses a map too, a moment later.
    expect(page.get_by_label("Relevance (TransMM)")).to_be_checked()
    page.get_by_label("Attention rollout").check()
    set_slider(page, "vv-rollout-discard_ratio", 0.5)
    open_panel(page, "vv-compare")
    page.locator("#vv-compare-start").click()
    expect(cards(page)).to_have_count(len(SERVING))
    expect_scores(page, compare(example, {"rollout": {"discard_ratio": 0.5}}, second))
    # Of another picture nothing was compared yet.
    page.locator("#vv-examples").get_by_role("button").nth(1).click()
    expect(cards(page)).to_have_count(0)


def expect_changes(page: Page, analysis: Analysis, heads: set[tuple[int, int]], patches: set[tuple[int, int]]) -> None:
    before = analysis.logits.softmax(-1)
    after = analysis.switched_off(heads, patches).softmax(-1) if heads or patches else before
    said = page.locator("#vv-switch-said")
    expect(said).to_contain_text(f"{len(patches)} patch{'es' * (len(patches) != 1)} and {len(heads)} head")
    for index in {*before.topk(5).indices.tolist(), *after.topk(5).indices.tolist()}:
        row = said.get_by_role("row").filter(has_text=re.compile(rf"^\s*{analysis.model.labels[index]}"))
        expect(row).to_contain_text(f"{before[index]:.1%}")
        expect(row).to_contain_text(f"{after[index]:.1%}")


def test_patches_and_heads_are_switched_off_and_on_by_a_click(page: Page, example: Analysis) -> None:
    open_panel(page, "vv-switches")
    patches, heads = page.locator("#vv-switch-patches img"), page.locator("#vv-switch-heads img")
    expect_changes(page, example, set(), set())
    layout = example.trace.layout
    spots = [(3, 4), (2, 4)]
    for number, (row, column) in enumerate(spots):
        click_at(patches, (column + 0.5) / layout.grid_width, (row + 0.5) / layout.grid_height)
        expect_changes(page, example, set(), set(spots[: number + 1]))
    config = example.model.network.config
    _, sheet = switches_sheet(config.depth, config.heads, ())
    width, height = sheet.size
    click_at(heads, (sheet.left + 2.4 * sheet.cell_width) / width, (sheet.top + 1.4 * sheet.cell_height) / height)
    expect_changes(page, example, {(1, 2)}, set(spots))
    # The number of a layer stands for all of its heads.
    layer = {(4, head) for head in range(config.heads)}
    click_at(heads, 40 / width, (sheet.top + 4.4 * sheet.cell_height) / height)
    expect_changes(page, example, {(1, 2), *layer}, set(spots))
    page.locator("#vv-switches").screenshot(path=ARTEFACTS / "switches.png")
    click_at(heads, 40 / width, (sheet.top + 4.4 * sheet.cell_height) / height)
    expect_changes(page, example, {(1, 2)}, set(spots))
    click_at(patches, (spots[0][1] + 0.5) / layout.grid_width, (spots[0][0] + 0.5) / layout.grid_height)
    expect_changes(page, example, {(1, 2)}, {spots[1]})
    page.locator("#vv-switch-on").click()
    expect_changes(page, example, set(), set())


def test_heads_are_ranked_by_what_falls_without_them(page: Page, example: Analysis, bundled: Model) -> None:
    open_panel(page, "vv-switches")
    page.locator("#vv-switch-rank").click()
    layer, head, fall = example.head_effects().strongest(1)[0]
    ranking = page.locator(".vv-ranking li")
    expect(ranking.first).to_have_text(f"layer {layer}, head {head}: −{100 * fall:.1f} points")
    page.locator("#vv-switches").screenshot(path=ARTEFACTS / "ranked.png")
    # Another picture has another ranking, which nobody has asked for.
    page.locator("#vv-examples").get_by_role("button").nth(1).click()
    expect(ranking).to_have_count(0)
    other = vitviz.analyze(ROOT / "assets" / "rocket.jpg", bundled)
    expect_changes(page, other, set(), set())


# A model that reads texts.


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("clip")
    make_transformers(folder, "CLIP")
    return folder


def test_a_model_without_classes_is_asked_in_words(browser: Browser, clip: Path) -> None:
    analysis = vitviz.analyze(EXAMPLE, vitviz.load(clip))
    tower = open_text_tower(analysis.model)
    pixels = analysis.prepared.pixels

    def gained(text: str) -> float:
        """By the picture, over a blank one."""
        images = torch.cat([torch.zeros_like(pixels), pixels])
        blank, whole = map(tower.target(text).score, analysis.model.network(images))
        return float(whole - blank)

    # The last is one that can be measured.
    texts = sorted(("a cat", "a dog", "a rocket", "coffee"), key=gained)
    with running_app(os.environ, "--checkpoint", str(clip)) as address, opened_page(browser, address) as page:
        open_panel(page, "vv-switches")
        expect(page.locator("#vv-switch-said")).to_contain_text("write what in the box “In words”")
        page.get_by_label("Relevance (TransMM)").check()
        expect(page.locator("#vv-notice")).to_contain_text("write below the token what, in words")
        expect(page.locator("#vv-target")).not_to_be_visible()
        words = page.locator("#vv-words").locator("input, textarea")
        for text in (texts[0], texts[-1]):
            words.fill(text)
            words.press("Enter")
            expect_map(page, analysis.map("relevance", target=tower.target(text)))
            expect(page.locator("#vv-notice")).not_to_be_visible()
        page.get_by_label("Grad-CAM").check()
        expect_map(page, analysis.map("grad_cam", target=(target := tower.target(texts[-1]))))
        said = page.locator("#vv-switch-said")
        expect(said.get_by_role("row", name=target.name)).to_contain_text(
            f"{target.score(analysis.switched_off()):.2f}"
        )
        page.locator("#vv-switch-rank").click()
        layer, head, fall = analysis.head_effects(target).strongest(1)[0]
        expect(page.locator(".vv-ranking li").first).to_have_text(f"layer {layer}, head {head}: −{fall:.2f}")
        expect(said).to_contain_text(f"The score of {target.name} with one head off")
        # A map that is about nothing does not make the words forgotten.
        page.get_by_label("Attention rollout").check()
        open_panel(page, "vv-compare")
        page.locator("#vv-compare-start").click()
        expect(cards(page)).to_have_count(len(SERVING))
        expect_scores(page, compare(analysis, target=target))
        expect(page.locator("#vv-cards")).to_contain_text(target.name)
        page.screenshot(path=ARTEFACTS / "words.png", full_page=True)

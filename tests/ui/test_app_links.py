"""Links of the tab Maps, in a browser: what they restore, and how the address follows."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

import vitviz
from tests.driver import ROOT, canvas, expect_map, expect_picture, new_page, set_slider
from vitviz import Analysis, Model, Style
from vitviz.weights import BUNDLED

pytestmark = pytest.mark.browser


def value(page: Page, name: str) -> str:
    return page.locator(f"#{name} input[type=number]").input_value()


def test_a_link_opens_the_map_and_follows_its_controls(browser: Browser, address: str, example: Analysis) -> None:
    page = new_page(browser)
    said = "tab=maps&method=rollout&p.head_fusion=max&p.start_layer=1&p.query=3%2C5&p.discard_ratio=7&grid=false"
    page.goto(f"{address}/?__theme=light&{said}#layer=2")
    fused = {"head_fusion": "max", "query": (3, 5)}
    expect(canvas(page)).to_be_visible()
    expect_map(page, example.rollout(**fused, start_layer=1))
    expect_picture(page, example.rollout(**fused, start_layer=1), Style(), mark=(3, 5))
    expect(page.get_by_label("Attention rollout")).to_be_checked()
    expect(page.locator("#vv-rollout")).to_be_visible()
    expect(page.locator("#vv-attention")).not_to_be_visible()
    expect(page.locator("#vv-rollout-head_fusion").get_by_label("max")).to_be_checked()
    assert (value(page, "vv-rollout-start_layer"), value(page, "vv-rollout-discard_ratio")) == ("1", "0")
    set_slider(page, "vv-rollout-start_layer", 3)
    expect_map(page, example.rollout(**fused, start_layer=3))
    page.wait_for_function("location.search.includes('p.start_layer=3') && !location.search.includes('discard')")
    page.wait_for_function("location.hash.includes('layer=2')")
    page.get_by_role("tab", name="Explore").click()
    # The explorer's part changes, and no other.
    page.locator("#vv-explorer .vx-layer").first.fill("4")
    page.wait_for_function("location.hash.includes('layer=4')")
    link = page.url
    assert "__theme=light" in link and "p.start_layer=3" in link
    page.goto("about:blank")
    page.goto(link)
    expect(canvas(page)).to_be_visible()
    expect_map(page, example.rollout(**fused, start_layer=3))
    # Controls are restored one after the other.
    page.wait_for_function("link => location.href === link", arg=link)
    page.close()


def test_a_link_restores_a_map_of_another_model_and_picture(browser: Browser, address: str, bundled: Model) -> None:
    page = new_page(browser)
    seen = f"model={BUNDLED[0]}&example=rocket.jpg&fit=native&resolution=48"
    page.goto(f"{address}/?{seen}&tab=maps&method=relevance&p.target=dog&p.query=1%2C11&colormap=gray")
    rocket = vitviz.analyze(ROOT / "assets" / "rocket.jpg", bundled, fit="native", resolution=48)
    heatmap = rocket.map("relevance", target="dog", query=(1, 11))
    expect(canvas(page)).to_be_visible()
    expect_map(page, heatmap)
    expect_picture(page, heatmap, Style("gray", grid=True), mark=(1, 11))
    assert page.locator("#vv-target input").input_value() == "dog"
    page.locator("#vv-python").get_by_role("button", name="As Python").click()
    expect(page.locator("#vv-python")).to_contain_text('analysis.map("relevance", target="dog", query=(1, 11))')
    expect(page.locator("#vv-python")).to_contain_text('"rocket.jpg", model, fit="native", resolution=48')
    page.wait_for_function("location.search.includes('p.target=dog') && location.search.includes('resolution=48')")
    page.close()

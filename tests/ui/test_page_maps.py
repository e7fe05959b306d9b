"""Maps on the canvas: the values and the words of every method are the library's, and follow its controls."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.driver import choose_method, click, click_patch, first_view, notice, set_slider
from tests.ui.answers import Library, check_page
from vitviz import METHODS, Analysis

pytestmark = pytest.mark.browser


# ---- every method ----


def test_the_menu_has_the_methods_that_serve_the_model_by_what_they_answer(page: Page) -> None:
    """Their maps are compared with the library's in tests/ui/test_page_comparison.py."""
    offered = page.locator(".vx-method option").evaluate_all("all => all.map((option) => option.value)")
    # The bundled model has a CLS token, and no attention pooling.
    assert sorted(offered) == sorted(name for name in METHODS if name != "pooling_attention")
    groups = page.locator(".vx-method optgroup").evaluate_all("all => all.map((group) => group.label)")
    assert groups == ["Where it looks", "Why", "All layers"]


# ---- what takes long ----


def test_a_map_that_takes_long_can_be_stopped(page: Page, library: Library) -> None:
    choose_method(page, "attention_flow")
    # The flow through so many patches takes a minute and more.
    slider = page.locator('.vx-parameter[data-name="most_patches"] input')
    slider.fill(slider.get_attribute("max") or "")
    busy = page.locator(".vx-busy")
    expect(busy).to_be_visible()
    expect(busy).to_contain_text("Attention flow")
    page.locator(".vx-stop").click()
    expect(notice(page)).to_contain_text("Stopped")
    expect(busy).not_to_be_visible()
    choose_method(page, "rollout")
    # So does any other wish.
    page.locator(".vx-method").select_option("attention_flow")
    expect(busy).to_be_visible()
    page.locator(".vx-method").select_option("rollout")
    expect(busy).not_to_be_visible()
    check_page(page, library)


# ---- a class ----


def test_a_click_on_a_prediction_shows_what_speaks_for_it(page: Page, example: Analysis, library: Library) -> None:
    best, second = (example.model.labels.index(each.label) for each in example.predictions(2))
    click(page, f'.vx-predictions button[data-index="{second}"]')
    expect(page.locator('.vx-predictions [aria-pressed="true"]')).to_have_count(1)
    expect(page.locator('.vx-predictions [aria-pressed="true"]')).to_be_focused()
    assert (first_view(page)["method"], first_view(page)["parameters"]) == ("relevance", {"target": second})
    check_page(page, library)
    # The map that is about a class stays when another is asked for, and the class when another map is.
    choose_method(page, "legrad")
    check_page(page, library)
    click(page, f'.vx-predictions button[data-index="{best}"]')
    assert (first_view(page)["method"], first_view(page)["parameters"]) == ("legrad", {"target": best})
    choose_method(page, "gradient_rollout")
    set_slider(page, "start_layer", 3)
    check_page(page, library)
    assert first_view(page)["parameters"] == {"target": best, "start_layer": 3}
    # The patch itself is excluded from the colour range.
    choose_method(page, "relevance")
    click_patch(page, example, 3, 4)
    check_page(page, library)

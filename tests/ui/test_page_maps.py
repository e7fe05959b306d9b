"""Maps on the canvas: the values and the words of every method are the library's, and follow its controls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

import vitviz
from tests.driver import (
    caption,
    choose_method,
    choose_option,
    click_patch,
    expect_map,
    first_view,
    keep_picture,
    open_panel,
    opened_page,
    set_slider,
    settle,
)
from tests.support.example import COARSE, COARSEST, EXAMPLE
from tests.ui.answers import Library, check_page
from vitviz import METHODS, Analysis, Model

pytestmark = pytest.mark.browser


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """With attention, which is computed in the page."""
    with opened_page(browser, address, "method=attention") as found:
        yield found


@pytest.fixture(scope="module")
def small(bundled: Model) -> Analysis:
    """Of a sixteenth of its patches."""
    return vitviz.analyze(EXAMPLE, bundled, resolution=COARSEST)


# ---- every method ----


def test_a_method_of_each_kind_shows_the_values_and_the_words_of_the_library(
    browser: Browser, address: str, library: Library
) -> None:
    """Of a quarter of its patches, which is enough for what takes long."""
    with opened_page(browser, address, f"method=attention&resolution={COARSEST}") as page:
        offered = page.locator(".vx-method option").evaluate_all("all => all.map((option) => option.value)")
        # The bundled model has a CLS token, and no attention pooling.
        assert sorted(offered) == sorted(name for name in METHODS if name != "pooling_attention")
        # The values of all are those of tests/ui/test_runs.py: here, one of what each kind is computed from.
        for name in {METHODS[name].requires: name for name in offered}.values():
            choose_method(page, name)
            check_page(page, library)
        groups = page.locator(".vx-method optgroup").evaluate_all("all => all.map((group) => group.label)")
        assert groups == ["Where it looks", "Why", "All layers together"]


@pytest.mark.long
def test_every_method_follows_the_token_and_the_class(
    browser: Browser, address: str, library: Library, small: Analysis
) -> None:
    with opened_page(browser, address, f"method=attention&resolution={COARSEST}") as page:
        choose_method(page, "relevance")
        page.locator(".vx-predictions button").nth(1).click()
        settle(page)
        click_patch(page, small, 2, 1)
        check_page(page, library)
        for name in [name for name in METHODS if METHODS[name].class_specific and not METHODS[name].reports]:
            choose_method(page, name)
            check_page(page, library)
            assert first_view(page)["parameters"].get("target") is not None


def test_rollout_follows_its_controls(page: Page, example: Analysis, library: Library) -> None:
    choose_method(page, "rollout")
    expect_map(page, example.rollout())
    choose_option(page, "head_fusion", "max")
    set_slider(page, "discard_ratio", 0.9)
    set_slider(page, "start_layer", 2)
    expect_map(page, example.rollout(head_fusion="max", discard_ratio=0.9, start_layer=2))
    check_page(page, library)
    keep_picture(page, "rollout.png")


@pytest.mark.long
def test_what_contradicts_itself_is_refused_in_one_sentence(page: Page, example: Analysis) -> None:
    choose_method(page, "rollout")
    set_slider(page, "start_layer", 2)
    choose_option(page, "reference", "vit-explain")
    expect(caption(page)).to_contain_text("vit-explain knows only")
    expect(page.get_by_text("Traceback")).to_have_count(0)
    set_slider(page, "start_layer", 0)
    expect_map(page, example.rollout(reference="vit-explain"))


@pytest.mark.long
def test_mass_and_flow_follow_their_controls(page: Page, library: Library) -> None:
    choose_method(page, "attention_mass")
    set_slider(page, "mass", 0.3)
    check_page(page, library)
    assert first_view(page)["parameters"] == {"mass": 0.3}
    choose_method(page, "attention_flow")
    set_slider(page, "most_patches", 16)
    check_page(page, library)
    assert first_view(page)["parameters"] == {"most_patches": 16}


def test_a_default_that_is_chosen_is_not_written_down(page: Page, example: Analysis) -> None:
    set_slider(page, "layer", 2)
    choose_option(page, "head", 3)
    assert first_view(page)["parameters"] == {"layer": 2, "head": 3}
    set_slider(page, "layer", example.trace.layers - 1)
    choose_option(page, "head", "mean")
    assert first_view(page)["parameters"] == {} and "p." not in page.url


def test_a_slider_that_is_moved_fast_comes_to_an_end(page: Page, example: Analysis, library: Library) -> None:
    asked: list[str] = []
    page.on("request", lambda sent: asked.append(sent.url) if sent.url.endswith("/run") else None)
    slider = page.locator('.vx-parameter[data-name="layer"] input')
    slider.focus()
    for _ in range(4):
        slider.press("ArrowLeft")
    check_page(page, library)
    assert first_view(page)["parameters"] == {"layer": example.trace.layers - 5}
    # Attention is computed in the page.
    assert asked == []


# ---- what takes long ----


def test_a_map_that_takes_long_can_be_stopped(page: Page, example: Analysis, library: Library) -> None:
    page.locator(".vx-method").select_option("attention_flow")
    settle(page)
    # The flow through so many patches takes a minute and more.
    slider = page.locator('.vx-parameter[data-name="most_patches"] input')
    slider.fill(slider.get_attribute("max") or "")
    busy = page.locator(".vx-busy")
    expect(busy).to_be_visible()
    expect(busy).to_contain_text("Attention flow")
    page.locator(".vx-stop").click()
    expect(page.locator(".vx-notice span")).to_contain_text("Stopped")
    expect(busy).not_to_be_visible()
    choose_method(page, "rollout")
    check_page(page, library)
    # So does any other wish.
    page.locator(".vx-method").select_option("attention_flow")
    expect(busy).to_be_visible()
    page.locator(".vx-method").select_option("rollout")
    expect(busy).not_to_be_visible()
    check_page(page, library)


@pytest.mark.long
def test_a_map_that_takes_long_shows_how_far_it_is(browser: Browser, address: str, library: Library) -> None:
    with opened_page(browser, address, f"resolution={COARSE}") as page:
        page.evaluate(
            """() => {
                window.seen = [];
                const part = document.querySelector(".vx-busy");
                const note = () => part.hidden || window.seen.push(part.innerText);
                new MutationObserver(note).observe(part, { attributes: true, subtree: true, childList: true });
            }"""
        )
        choose_method(page, "occlusion")
        check_page(page, library)
        expect(page.locator(".vx-busy")).not_to_be_visible()
        assert any("Occlusion" in text for text in page.evaluate("window.seen"))


# ---- a class ----


def test_a_click_on_a_prediction_shows_what_speaks_for_it(page: Page, example: Analysis, library: Library) -> None:
    labels = example.model.labels
    second = labels.index(example.predictions(2)[1].label)
    page.locator(f'.vx-predictions button[data-index="{second}"]').click()
    settle(page)
    assert (first_view(page)["method"], first_view(page)["parameters"]) == ("relevance", {"target": second})
    check_page(page, library)
    # The map that is about a class stays when another is asked for, and the class when another map is.
    choose_method(page, "legrad")
    check_page(page, library)
    best = labels.index(example.predictions(1)[0].label)
    page.locator(f'.vx-predictions button[data-index="{best}"]').click()
    settle(page)
    assert (first_view(page)["method"], first_view(page)["parameters"]) == ("legrad", {"target": best})
    choose_method(page, "gradient_rollout")
    set_slider(page, "start_layer", 3)
    check_page(page, library)
    keep_picture(page, "gradient_rollout.png")


def test_a_class_is_written(page: Page, example: Analysis, library: Library) -> None:
    choose_method(page, "grad_cam")
    written = page.locator(".vx-target")
    written.fill("Horse")
    written.press("Enter")
    settle(page)
    assert first_view(page)["parameters"] == {"target": example.model.labels.index("horse")}
    expect_map(page, example.map("grad_cam", target="horse"))
    written.fill("seahorse")
    written.press("Enter")
    expect(page.locator(".vx-notice span")).to_contain_text("seahorse: this model has no class of this name")
    expect_map(page, example.map("grad_cam", target="horse"))
    written.fill("")
    written.press("Enter")
    settle(page)
    assert first_view(page)["parameters"] == {}
    open_panel(page, "model")


def test_the_identity_of_a_patch_is_left_out_of_its_class_map(page: Page, example: Analysis, library: Library) -> None:
    choose_method(page, "relevance")
    click_patch(page, example, 3, 4)
    page.mouse.move(1, 1)
    expect(caption(page)).to_contain_text("patch (3, 4) itself, where this map begins, is left out of the colours")
    expect(caption(page)).not_to_contain_text("Strongest: patch (3, 4) with")
    check_page(page, library)

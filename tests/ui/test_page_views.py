"""Two maps, and how a picture is brought to the model: each on the same canvas, each as the library has it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

import vitviz
from tests.driver import (
    EXPLORER,
    NEXT_FRAMES,
    ask,
    canvas,
    caption,
    choose_example,
    choose_layout,
    choose_method,
    choose_other,
    click,
    click_patch,
    expect_map,
    first_view,
    notice,
    open_settings,
    page_at,
    settle,
    show_default,
    state,
    upload,
    write,
)
from tests.support.colour_profiles import gamma_profile
from tests.support.example import EXAMPLE, ROOT
from tests.ui.answers import Library, check_page, number_of
from tests.ui.explorer.page_driver import SmallApp
from vitviz import METHODS, Analysis, Model
from vitviz.images.code_points import PRIMARIES

pytestmark = pytest.mark.browser


# ---- two maps ----


def test_two_maps_stand_side_by_side_where_both_fit(cifar_page: Page) -> None:
    page = cifar_page
    choose_layout(page, "two")
    wider = """all => all.filter((pane) => [...pane.querySelectorAll("*")].some((part) =>
        part.getBoundingClientRect().right > pane.getBoundingClientRect().right + 1)).length"""
    for width, columns in ((390, 1), (768, 2), (1080, 2), (1400, 2)):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(NEXT_FRAMES)
        panes = page.locator(".vx-pane:not([hidden])").evaluate_all(
            "all => all.map((pane) => pane.getBoundingClientRect().left)"
        )
        assert len(set(panes)) == columns, width
        assert page.locator(".vx-pane").evaluate_all(wider) == 0, width


def test_another_method_answers_what_the_first_does(page: Page, library: Library) -> None:
    """With its layer, head and square, as far as it has them, and its name on it."""
    asked = {"layer": 5, "head": 2, "query": [3, 4]}
    page.evaluate(f"{EXPLORER}.store.patchView(0, {{ method: 'attention', parameters: {asked} }})")
    choose_layout(page, "two")
    for method, kept in (("attention_mass", asked), ("rollout", {"query": [3, 4]}), ("attention_mass", asked)):
        choose_other(page, "method", METHODS[method].title)
        views = state(page)["views"]
        assert [(view["method"], view["parameters"]) for view in views] == [("attention", asked), (method, kept)]
        expect(page.locator(".vx-pane .vx-badge").nth(1)).to_contain_text(METHODS[method].title)
        check_page(page, library)


def test_another_class_stands_beside_the_first(page: Page, bundled: Model, library: Library) -> None:
    """Also from a map that is about no class."""
    first, second, third = vitviz.analyze(ROOT / "assets" / "chelsea.jpg", bundled).predictions(3)
    choose_layout(page, "two")
    page.locator(".vx-other-kind").select_option("class")
    settle(page)
    choose_other(page, "class", third.label)
    assert first.label not in page.locator(".vx-other option").all_text_contents()
    assert [view["parameters"].get("target") for view in state(page)["views"]] == [None, third.index]
    for pane, asked in enumerate((first, third)):
        expect(page.locator(".vx-pane .vx-badge").nth(pane)).to_contain_text(asked.label)
    check_page(page, library)
    choose_other(page, "class", second.label)
    assert state(page)["views"][1]["parameters"]["target"] == second.index
    # Each has its own scale, on which its strongest square is the brightest, unless one for both is wanted.
    own, highs = page.locator(".vx-own_scales"), page.locator(".vx-pane:not([hidden]) .vx-high")
    names = page.locator(".vx-pane:not([hidden]) .vx-scale-name")
    for is_own in (True, False, True):
        expect(own).to_be_checked(checked=is_own)
        expect(names).to_have_text([re.compile(r", its own$" if is_own else r", shared$")] * 2)
        check_page(page, library)
        assert len(set(highs.all_inner_texts())) == 1 + is_own
        own.set_checked(not is_own)
    assert state(page)["own_scales"] is False and "own-scales=false" in page.url
    # A choice holds for whatever is compared; without one, the same class of both is on one scale.
    page.evaluate(f"{EXPLORER}.store.patch({{ own_scales: null }})")
    expect(own).to_be_checked()
    for other, is_own in (({"target": first.index}, False), ({"target": second.index, "query": [3, 3]}, True)):
        page.evaluate(f"(parameters) => {EXPLORER}.store.patchView(1, {{ parameters }})", other)
        settle(page)
        expect(own).to_be_checked(checked=is_own)
        expect(names).to_have_text([re.compile(r", its own$" if is_own else r", shared$")] * 2)


def test_a_scale_is_held_for_one_quantity_and_links_say_it(browser: Browser, address: str) -> None:
    ends = ".vx-pane:not([hidden]) :is(.vx-low, .vx-high)"
    with page_at(browser, address, "method=relevance") as page:
        page.locator(".vx-hold").first.check()
        settle(page)
        link, held = page.url.partition("?")[2], page.locator(ends).all_inner_texts()
    with page_at(browser, address, f"{link}&example=rocket.jpg") as page:
        assert page.locator(ends).all_inner_texts() == held
        choose_method(page, "rollout")
        assert state(page)["low"] is None
        settle(page)
        assert "low=" not in page.url


def test_another_picture_stands_beside_the_first(page: Page, bundled: Model, library: Library) -> None:
    choose_layout(page, "two")
    choose_other(page, "head", "mean")
    click(page, ".vx-canvas >> nth=1")
    choose_other(page, "picture", "rocket")
    assert [view["picture"] for view in state(page)["views"]] == ["example:chelsea.jpg", "example:rocket.jpg"]
    check_page(page, library)
    # Both answers are said, and what is hidden in either is shown again by one button.
    analyses = [vitviz.analyze(ROOT / "assets" / name, bundled) for name in ("chelsea.jpg", "rocket.jpg")]
    headline, best = page.locator(".vx-headline"), [each.predictions(1)[0] for each in analyses]
    each = ", of 108 things it knows: {0.label}, {0.probability:.0%}"
    said = " · ".join(name + each.format(found) for name, found in zip("AB", best, strict=True))
    expect(headline).to_have_text(said)
    for pane in (0, 1):
        click(page, f".vx-canvas >> nth={pane}")
        ask(page, "hide")
        click_patch(page, analyses[1], 4, 4, pane)
        ask(page, "token")
    expect(headline).to_have_text("A: 1 square hidden · B: 1 square hidden")
    page.locator(".vx-all-on").click()
    expect(headline).to_have_text(said)
    expect(page.locator(".vx-all-on")).not_to_be_visible()
    assert [view["patches_off"] for view in state(page)["views"]] == [[], []]
    # It stays beside another first picture.
    click(page, ".vx-canvas")
    choose_example(page, "coffee.jpg")
    assert [view["picture"] for view in state(page)["views"]] == ["example:coffee.jpg", "example:rocket.jpg"]
    check_page(page, library)


def test_maps_of_two_parts_of_a_picture_have_no_difference(browser: Browser, cifar: SmallApp) -> None:
    link = "layout=difference&method=attention&fit=squash&second.method=attention&second.fit=crop"
    with page_at(browser, cifar.address, link) as page:
        expect(caption(page, 2)).to_contain_text("A and B see different parts of their pictures")


def test_why_begins_with_the_answer_of_each_picture(page: Page, bundled: Model) -> None:
    def best(name: str) -> str:
        return vitviz.analyze(ROOT / "assets" / name, bundled).predictions(1)[0].label

    second, why = ".vx-predictions button >> nth=1", page.locator("[data-question=target]")
    click(page, second)
    label = bundled.labels[first_view(page)["parameters"]["target"]]
    ask(page, "token")
    # On the same picture, it goes on with the class that was chosen.
    expect(why).to_have_text(f"Why “{label}”")
    choose_example(page, "coffee.jpg")
    expect(why).to_have_text(f"Why “{best('coffee.jpg')}”")
    ask(page, "target")
    expect(caption(page)).to_contain_text(f"for class {best('coffee.jpg')}")
    # A class that was chosen for one picture is not asked about in another.
    click(page, second)
    choose_example(page, "rocket.jpg")
    expect(caption(page)).to_contain_text(f"for class {best('rocket.jpg')}")
    # There, the square under the pointer says its value, and does not ask.
    said = caption(page).inner_text()
    canvas(page).hover(position={"x": 100, "y": 100})
    expect(page.locator(".vx-quantity").first).to_contain_text("patch (")
    assert caption(page).inner_text() == said


def test_the_difference_of_two_maps_is_said_and_drawn(page: Page, example: Analysis, library: Library) -> None:
    choose_layout(page, "difference")
    # B begins with another head.
    assert state(page)["views"][1]["parameters"]["head"] == 0
    choose_other(page, "head", "mean")
    expect(caption(page, 2)).to_have_text("A − B: they are equal.")
    # A scale from 0 to 0 says nothing, and what is neither more nor less has the colour of the middle.
    expect(page.locator(".vx-legend").nth(2)).to_be_hidden()
    places = "Array.from(drawing.scale.places(drawing.patches))"
    assert set(page.evaluate(f"() => {{ const {{ drawing }} = {EXPLORER}.difference(); return {places}; }}")) == {0.5}
    # A click on the other map chooses that, and no square; the difference asks as the first map does.
    click_patch(page, example, 5, 5)
    assert state(page)["views"][0]["parameters"].get("query") != [5, 5]
    click_patch(page, example, 3, 3, 2)
    choose_other(page, "layer", "6")
    # Both maps stand beside it, on one scale.
    check_page(page, library)
    first, second = (example.attention(layer=layer, query=(3, 3)).values.numpy() for layer in (-1, -2))
    difference = first - second
    place = tuple(map(int, np.unravel_index(np.abs(difference).argmax(), difference.shape)))
    begins = f"A − B, above 0 where A has more. Largest difference: patch {place} with "
    said = caption(page, 2).inner_text()
    assert said.startswith(begins), said
    ends = [page.locator(f".vx-{end}").nth(2).inner_text() for end in ("low", "high")]
    found = [number_of(text) for text in (said.removeprefix(begins).split()[0].rstrip("."), *ends)]
    most = np.abs(difference).max()
    assert found == pytest.approx([difference[place], -most, most], rel=0.02)
    # Unless each is to have its own.
    page.locator(".vx-own_scales").check()
    check_page(page, library)
    assert page.locator(".vx-high").nth(0).inner_text() != page.locator(".vx-high").nth(1).inner_text()
    tops = page.locator(".vx-canvas").evaluate_all("all => all.map((each) => each.getBoundingClientRect().top)")
    assert len(tops) == 3 and len(set(tops)) == 1


def test_a_divider_stands_between_map_and_picture(page: Page) -> None:
    choose_layout(page, "slide")
    rows = []
    for place in ("0", "0.5"):
        page.locator(".vx-divider").fill(place)
        assert (state(page)["layout"], state(page)["divider"]) == ("slide", float(place))
        row = "Array.from(canvas.getContext('2d').getImageData(0, canvas.height / 2, canvas.width, 1).data)"
        rows.append(np.array(canvas(page).evaluate(f"canvas => {row}")).reshape(-1, 4)[:, :3])
    # The columns whose colours differ from those without a map.
    half = np.abs(rows[1] - rows[0]).sum(1) > 6
    middle = len(half) // 2
    assert half[:middle].mean() > 0.3 and not half[middle + 10 :].any()


# ---- what the model sees ----


def test_what_the_model_sees_is_chosen_and_said(cifar_page: Page, cifar: SmallApp, tmp_path: Path) -> None:
    page, library, model = cifar_page, Library(cifar.model), cifar.model
    # The last is the model's own.
    for fit in ("squash", "native", "crop"):
        open_settings(page).locator(".vx-fit").select_option(fit)
        check_page(page, library)
        assert first_view(page)["fit"] == (None if fit == "crop" else fit)
    # What cannot be is said, and the trained resolution is used.
    for pixels, expected in (("48", 48), ("75", None)):
        write(page, "pixels", pixels)
        check_page(page, library)
        assert first_view(page)["resolution"] == expected
    expect(notice(page)).to_contain_text("75")
    page.locator(".vx-resolution").select_option("null")
    settle(page)
    # What a file leaves open is assumed, said, and can be chosen.
    ramp, photo = tmp_path / "cells.tif", tmp_path / "phone.png"
    Image.fromarray(np.linspace(0, 4095, 96 * 96).reshape(96, 96).astype(np.uint16)).save(ramp)
    with Image.open(EXAMPLE) as example:
        example.resize((96, 64)).save(photo, icc_profile=gamma_profile(1 / 2.2, PRIMARIES[12][1]))
    said, strip = page.locator(".vx-picture-assumptions"), tmp_path / "strip.tif"
    Image.fromarray(np.full((64, 640), 99, np.uint16)).save(strip)
    upload(page, strip)
    for sentence in ("so that it is dark.", "which is shown whole"):
        expect(notice(page)).to_contain_text(sentence)
    upload(page, ramp)
    expect(said).to_contain_text("value_range=(0, 4095)")
    expect(notice(page)).to_contain_text("cells.tif: its values end at 4,095 of 65,535, so that it is dark.")
    page.get_by_role("button", name="Read 4,095 as white").click()
    settle(page)
    expect(said).to_be_hidden()
    open_settings(page)
    expect(page.locator(".vx-white")).to_have_value("4095")
    show_default(page)
    expect_map(page, vitviz.analyze(ramp, model, value_range=(0, 4095)).map(first_view(page)["method"]))
    upload(page, photo)
    expect(said).to_contain_text("converted to sRGB")
    assert first_view(page)["white"] is None
    # Of a small picture, its own resolution is soon computed.
    open_settings(page).locator(".vx-resolution").select_option("native")
    check_page(page, Library(model, pictures={first_view(page)["picture"]: photo}))
    assert first_view(page)["resolution"] == "native"
    page.locator(".vx-resolution").select_option("null")
    open_settings(page).locator(".vx-stored-colours").check()
    assert first_view(page)["color_profile"] == "ignore"
    expect_map(page, vitviz.analyze(photo, model, color_profile="ignore").attention())

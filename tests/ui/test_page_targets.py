"""What a map is about, chosen on the page: classes against others, and likeness to pictures and patches."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.driver import (
    ask,
    caption,
    choose_example,
    choose_method,
    first_view,
    notice,
    open_link,
    page_at,
    settle,
    write,
)
from tests.ui.answers import Library, check_page
from tests.ui.explorer.page_driver import Apps
from vitviz.ui.pictures import EXAMPLES
from vitviz.ui.service import NO_TARGET

pytestmark = pytest.mark.browser


def target(page: Page) -> object:
    settle(page)
    return first_view(page)["parameters"].get("target")


def like(page: Page, name: str) -> None:
    page.locator(f'.vx-like button[data-like="example:{name}"]').click()


def test_a_class_against_another_and_likeness(browser: Browser, apps: Apps) -> None:
    classes = apps("classes")
    library = Library(classes.model)
    with page_at(browser, classes.address, "method=relevance") as page:
        for name, text, found in (
            ("against", "c", {"against": 2}),
            ("target", "b", {"class": 1, "against": 2}),
            ("against", "the best of the others", {"class": 1, "margin": True}),
        ):
            write(page, name, text)
            assert target(page) == found
            check_page(page, library)
        for name, text, refusal in (
            ("against", "b", "b: choose another class than the one that the map is about"),
            ("target", "seahorse", "seahorse: this model has no class of this name"),
        ):
            write(page, name, text)
            expect(notice(page)).to_contain_text(refusal)
        write(page, "against", "")
        assert target(page) == 1
        page.locator(".vx-likeness summary").click()
        for found in ({"like": "example:rocket.jpg"}, None):
            like(page, "rocket.jpg")
            assert target(page) == found
            check_page(page, library)


def test_likeness_is_all_that_a_model_without_classes_can_be_asked(
    browser: Browser, apps: Apps, tmp_path: Path
) -> None:
    features = apps("features")
    Image.effect_noise((40, 30), 90).convert("RGB").save(tmp_path / "noise.png")
    library = Library(features.model)
    with page_at(browser, features.address, "panel=compare&method=relevance&p.target=3") as page:
        expect(notice(page)).to_contain_text("has no class '3'.")
        expect(caption(page)).to_have_text(f"{NO_TARGET}.")
        expect(page.locator(".vx-predictions-part")).not_to_be_visible()
        expect(page.locator(".vx-compare-start")).to_be_disabled()
        expect(page.locator("[data-panel=compare] .vx-no-score")).to_contain_text("Choose a map for a likeness")
        like(page, "coffee.jpg")
        assert target(page) == {"like": "example:coffee.jpg"}
        expect(page.locator(".vx-compare-start")).to_be_enabled()
        write(page, "like-patch", "somewhere")
        expect(notice(page)).to_contain_text("somewhere: expected a row and a column of patches, such as 3, 5")
        write(page, "like-patch", "3, 5")
        assert target(page) == {"like": "example:coffee.jpg", "patch": [3, 5]}
        check_page(page, library)
        # A picture of one's own, which is not analysed, is asked for by its id. A field with the focus keeps its text.
        page.evaluate("document.activeElement.blur()")
        page.locator(".vx-like-file").set_input_files(tmp_path / "noise.png")
        expect(page.locator(".vx-like button")).to_have_count(len(EXAMPLES) + 1)
        found = target(page)
        assert isinstance(found, dict) and found["like"].startswith("picture:") and "patch" not in found
        library.pictures[found["like"]] = tmp_path / "noise.png"
        check_page(page, library)
        # Another picture has another patch there.
        open_link(page, "/?method=legrad&like-patch=2,3")
        check_page(page, library)
        choose_example(page, "rocket.jpg")
        assert target(page) is None
        expect(caption(page)).to_have_text(f"{NO_TARGET}.")
        # Where no classifier reads a CLS token, the mean patch is asked.
        for method in ("attention", "rollout"):
            choose_method(page, method)
            expect(page.locator(".vx-chip", has_text="mean patch").first).to_have_attribute("aria-pressed", "true")
            check_page(page, library)


def test_a_model_without_classes_asks_for_a_picture_before_it_says_why(browser: Browser, apps: Apps) -> None:
    with page_at(browser, apps("features").address) as page:
        unless, lead = page.locator(".vx-tab[data-question=hide]"), page.locator(".vx-lead")
        expect(unless).to_be_disabled()
        expect(unless).to_have_attribute("title", re.compile("^Say under Why first"))
        ask(page, "target")
        expect(lead).to_contain_text("Choose a picture under Method and options")
        like(page, "coffee.jpg")
        expect(lead).to_have_text("Bright squares speak for likeness to the other picture.")
        ask(page, "hide")
        expect(lead).to_contain_text("see the likeness change")

"""What a map is about, chosen on the page: classes against others, and likeness to pictures and patches."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.driver import (
    caption,
    choose_example,
    choose_method,
    first_view,
    keep_picture,
    notice,
    open_panel,
    page_at,
    settle,
)
from tests.ui.answers import Library, check_page
from tests.ui.explorer.page_driver import Apps, SmallApp
from vitviz.ui.pictures import EXAMPLES
from vitviz.ui.service import NO_TARGET

pytestmark = pytest.mark.browser


@pytest.fixture
def classes(apps: Apps) -> SmallApp:
    return apps("classes")


@pytest.fixture
def features(apps: Apps) -> SmallApp:
    return apps("features")


def write(page: Page, name: str, text: str) -> None:
    field = page.locator(f".vx-{name}")
    field.fill(text)
    field.press("Enter")


def target(page: Page) -> object:
    settle(page)
    return first_view(page)["parameters"].get("target")


def like(page: Page, name: str) -> None:
    page.locator(f'.vx-like button[data-like="example:{name}"]').click()


def test_a_prediction_keeps_the_focus(browser: Browser, classes: SmallApp) -> None:
    with page_at(browser, classes.address, "method=relevance") as page:
        prediction = page.locator(".vx-predictions button").nth(1)
        prediction.focus()
        page.keyboard.press("Enter")
        assert target(page) == int(prediction.get_attribute("data-index") or "")
        expect(prediction).to_be_focused()
        expect(page.locator('.vx-predictions [aria-pressed="true"]')).to_have_count(1)
        expect(prediction).to_have_attribute("aria-pressed", "true")


def test_a_class_against_another(browser: Browser, classes: SmallApp) -> None:
    library = Library(classes.model)
    with page_at(browser, classes.address, "method=relevance") as page:
        write(page, "against", "c")
        assert target(page) == {"against": 2}
        check_page(page, library)
        write(page, "target", "b")
        assert target(page) == {"class": 1, "against": 2}
        check_page(page, library)
        assert "p.target=1" in page.url and "against=2" in page.url
        write(page, "against", "the best of the others")
        assert target(page) == {"class": 1, "margin": True}
        check_page(page, library)
        write(page, "against", "b")
        expect(notice(page)).to_contain_text("b: choose another class than the one that the map is about")
        write(page, "against", "")
        assert target(page) == 1
        check_page(page, library)


def test_likeness_of_a_model_with_classes_and_back(browser: Browser, classes: SmallApp) -> None:
    library = Library(classes.model)
    with page_at(browser, classes.address, "method=legrad&p.target=1") as page:
        page.locator(".vx-likeness summary").click()
        like(page, "rocket.jpg")
        assert target(page) == {"like": "example:rocket.jpg"}
        check_page(page, library)
        like(page, "rocket.jpg")
        assert target(page) is None
        check_page(page, library)


@pytest.mark.long
def test_likeness_is_all_that_a_model_without_classes_can_be_asked(
    browser: Browser, features: SmallApp, tmp_path: Path
) -> None:
    Image.effect_noise((40, 30), 90).convert("RGB").save(tmp_path / "noise.png")
    library = Library(features.model)
    with page_at(browser, features.address) as page:
        open_panel(page, "compare")
        expect(page.locator(".vx-compare-start")).to_be_disabled()
        expect(page.locator(".vx-compare-said")).to_contain_text("Choose a map for a likeness")
        page.locator(".vx-method").select_option("relevance")
        expect(caption(page)).to_have_text(f"{NO_TARGET}.")
        like(page, "coffee.jpg")
        assert target(page) == {"like": "example:coffee.jpg"}
        check_page(page, library)
        expect(page.locator(".vx-compare-start")).to_be_enabled()
        expect(page.locator(".vx-compare-said")).to_contain_text("Every map of this picture")
        choose_method(page, "grad_cam")
        check_page(page, library)
        write(page, "like-patch", "3, 5")
        assert target(page) == {"like": "example:coffee.jpg", "patch": [3, 5]}
        check_page(page, library)
        choose_method(page, "relevance")
        check_page(page, library)
        keep_picture(page, "likeness.png")
        page.locator(".vx-chip", has_text="CLS").click()
        assert first_view(page)["parameters"]["query"] == "cls"
        check_page(page, library)
        # A picture of one's own, which is not analysed, is asked for by its id.
        page.locator(".vx-like-file").set_input_files(tmp_path / "noise.png")
        expect(page.locator(".vx-like button")).to_have_count(len(EXAMPLES) + 1)
        found = target(page)
        assert isinstance(found, dict) and found["like"].startswith("picture:") and "patch" not in found
        library.pictures[found["like"]] = tmp_path / "noise.png"
        check_page(page, library)
        link = page.url.partition("?")[2]
    with page_at(browser, features.address, link) as page:
        check_page(page, library)
        expect(page.locator(".vx-like button").last).to_have_text("the picture of this link")


@pytest.mark.long
def test_a_patch_of_the_picture_itself(browser: Browser, features: SmallApp) -> None:
    library = Library(features.model)
    with page_at(browser, features.address, "method=legrad&like-patch=2,3") as page:
        assert target(page) == {"patch": [2, 3]}
        check_page(page, library)
        write(page, "like-patch", "somewhere")
        expect(notice(page)).to_contain_text("somewhere: expected a row and a column of patches, such as 3, 5")
        open_panel(page, "switches")
        page.get_by_role("button", name="layer 0, head 0", exact=True).click()
        expect(page.locator(".vx-changes tbody th")).to_have_text("likeness to patch (2, 3) of this picture")
        # Another picture has another patch there.
        choose_example(page, "rocket.jpg")
        assert target(page) is None
        expect(caption(page)).to_have_text(f"{NO_TARGET}.")

"""Text is text everywhere: what a file, a class, a link or a visitor says stands on the page to the letter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

import vitviz
from tests.driver import (
    EXPLORER,
    box_of,
    choose_layout,
    choose_method,
    close_menus,
    notice,
    open_menu,
    open_panel,
    open_settings,
    opened_page,
    page_at,
    settle,
    upload,
)
from tests.ui.answers import Library, check_page
from tests.ui.explorer.page_driver import SmallApp, small_app
from vitviz import Model, save_checkpoint

pytestmark = pytest.mark.browser

MARKUP = "a, img, b, em, strong, del, code, pre, table, h1, ol, blockquote, script, .katex, .mermaid"


# Nothing answers there.
ADDRESS = "127.0.0.1:9"
# What Markdown, its GitHub flavour, HTML and KaTeX would make something else of.
TEXTS = (
    f"[a link](http://{ADDRESS}/a)",
    f"http://{ADDRESS}/bare",
    f"www.{ADDRESS}/bare",
    f"<http://{ADDRESS}/angled>",
    f"![an image](http://{ADDRESS}/i.png)",
    f"[r]: http://{ADDRESS}/r",
    "someone@127.0.0.1 a@b.example",
    "<b>bold</b> <img src=x onerror=alert(1)>",
    "&amp; &lt;b&gt; &#65; &copy; a & b",
    "$x^2$ $$x^2$$ \\(x\\) \\[x\\] \\begin{equation}x\\end{equation}",
    "`code` ```mermaid graph``` ~~~",
    "*em* _em_ **strong** __strong__ ~~gone~~",
    "# heading",
    "1. first",
    "- item + item",
    "> quoted",
    "a | b | - | -",
    ':smile: {0} %s ${1+1} {{value}} __i18n__{"key":"a"}',
    "back\\slash \\* --- === ***",
)


def check_text(place: Locator, texts: tuple[str, ...], own: int = 0) -> None:
    """All texts stand there to the letter, and nothing was made of them.

    Args:
        place: where they stand.
        texts: what stands there.
        own: how many elements of these kinds the page itself has there.
    """
    shown = " ".join((place.text_content() or "").split())
    assert [text for text in texts if text not in shown] == []
    assert place.locator(MARKUP).count() == own


def test_the_page_shows_every_text_to_the_letter(
    make_model: Callable[..., Model], browser: Browser, tmp_path: Path
) -> None:
    model = make_model(classes=len(TEXTS))
    checkpoint = tmp_path / "model.safetensors"
    save_checkpoint(checkpoint, replace(model, labels=TEXTS, card={f"fact {text}": text for text in TEXTS}))
    name = f"&amp; $$x^2$$ www.{ADDRESS} [a](b) `c` _d_ *e* a@b.example.png"
    with small_app(vitviz.load(checkpoint)) as app, opened_page(browser, app.address) as page:
        check_text(page.locator(".vx-classes"), TEXTS)
        upload(page, {"name": name, "mimeType": "image/png", "buffer": b""})
        expect(notice(page)).to_contain_text("an empty file")
        check_text(notice(page), (f"{name}: an empty file",))
        predictions = page.locator(".vx-predictions")
        shown = [int(str(button.get_attribute("data-index"))) for button in predictions.locator("button").all()]
        assert len(shown) == 5
        check_text(predictions, tuple(TEXTS[index] for index in shown))
        check_text(open_panel(page, "model").locator("dl"), (*TEXTS, *(f"fact {text}" for text in TEXTS)))
        # In a caption, a control and the link.
        choose_method(page, "relevance")
        library = Library(vitviz.load(checkpoint))
        for index in shown:
            # The page shows the first three of five.
            page.locator(f'.vx-predictions button[data-index="{index}"]').evaluate("button => button.click()")
            settle(page)
            check_text(page.locator(".vx-status").first, (TEXTS[index],))
            assert page.locator(".vx-target").input_value() == TEXTS[index]
        check_page(page, library)
        page.evaluate(f"{EXPLORER}.store.patchView(0, {{ heads_off: [[0, 0]] }})")
        settle(page)
        # The table is the page's own.
        check_text(page.locator(".vx-changes tbody"), tuple(TEXTS[index] for index in shown))
        page.locator(".vx-rank").evaluate("button => button.click()")
        settle(page)
        check_text(page.locator(".vx-switch-said"), (TEXTS[shown[-1]],))


# ---- the layout ----


# What lies outside the page, and what something else lies over; what scrolls in itself may be wider.
UNREACHABLE = """root => {
    const scrolls = (part) => ["auto", "scroll"].includes(getComputedStyle(part).overflowX);
    const scrolled = ({ parentElement: around }) => around !== root && (scrolls(around) || scrolled(around));
    // Outside of the page until it has the focus.
    const parts = [...root.querySelectorAll("*:not(.vx-skip)")].filter((part) => part.checkVisibility());
    const cut = parts.filter((part) => {
        const { left, right } = part.getBoundingClientRect();
        // Far outside is what only a screen reader says.
        return !scrolled(part) && ((left < -0.5 && right > 0) || right > innerWidth + 0.5);
    });
    const hidden = parts.filter((part) => part.matches("button, input, select, summary, canvas")).filter((part) => {
        part.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
        const { left, top, width, height } = part.getBoundingClientRect();
        return !part.contains(document.elementFromPoint(left + width / 2, top + height / 2));
    });
    return [cut, hidden].map((wrong) => wrong.map((part) => part.outerHTML.slice(0, 120)));
}"""


@pytest.mark.parametrize("width", [320, 768, 1440])
def test_it_fits_the_screen(browser: Browser, registers: SmallApp, width: int) -> None:
    """From the narrowest that WCAG 2.1 names (1.4.10)."""
    with page_at(browser, registers.address, "method=rollout") as page:
        page.set_viewport_size({"width": width, "height": 900})
        check_fit(page, width)


def check_fit(page: Page, width: int) -> None:
    """Whatever is opened, nothing is wider than the screen."""
    settle(page)
    # The picture is on the first screen.
    edges = box_of(page.locator(".vx-canvas").first)
    assert edges["y"] + edges["height"] / 2 < 900
    for panel in ("", "compare", "switches", "save", "model"):
        if panel:
            open_panel(page, panel)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, panel
    choose_layout(page, "two")
    close_menus(page)
    assert page.locator("#vv-explorer").evaluate(UNREACHABLE) == [[], []]
    # The legend of a map ends where its picture does.
    assert page.locator(".vx-pane").evaluate_all(
        "all => all.every((pane) => pane.querySelector('.vx-high').getBoundingClientRect().right"
        " <= Math.ceil(pane.getBoundingClientRect().right))"
    )
    open_menu(page, "models")
    page.locator(".vx-own > summary").click()
    open_settings(page)
    open_menu(page, "more")
    page.locator(".vx-guide-open").click()
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width

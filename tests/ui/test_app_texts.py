"""Text is text everywhere: what a file, a class, a link or a visitor says stands on the page to the letter."""

from __future__ import annotations

import os
import re
import socket
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect
from vitviz.ui.texts import plain, said_plainly, visible

from tests.driver import ROOT, canvas, opened_page, running_app
from vitviz import Model, save_checkpoint

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def own_address() -> Iterator[str]:
    """An address of this machine that nobody else has, and that answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def markup(address: str) -> tuple[str, ...]:
    """What Markdown, its GitHub flavour, HTML and KaTeX would make something else of."""
    return (
        f"[a link](http://{address}/a)",
        f"http://{address}/bare",
        f"www.{address}/bare",
        f"<http://{address}/angled>",
        f"![an image](http://{address}/i.png)",
        f"[r]: http://{address}/r",
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


HIDDEN = {"two\nlines \t tab": "two lines tab", "\u202egpj": "\\u202egpj", "a\u2066b\u2069": "a\\u2066b\\u2069"}
HIDDEN |= {"nul\0": "nul\\x00", "می\u200cخواهم": "می\u200cخواهم", "猫\u3000": "猫"}


def test_nothing_in_plain_text_is_left_to_markdown() -> None:
    for text in (*markup("127.0.0.1:1"), *HIDDEN):
        written = plain(text)
        assert re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", written) == visible(text)
        # Every mark has its backslash.
        assert not re.search(r"[!-/:-@\[-`{-~]", re.sub(r"\\[!-/:-@\[-`{-~]", "", written))


@pytest.mark.parametrize(("text", "expected"), HIDDEN.items(), ids=ascii)
def test_what_is_not_seen_or_turns_text_around_is_written_as_an_escape(text: str, expected: str) -> None:
    assert visible(text) == expected
    assert all(unicodedata.category(letter) not in ("Cc", "Cs", "Co") for letter in visible(text))
    assert said_plainly(text) == f'<p class="vv-aside">{expected}</p>'


def test_the_page_has_no_markdown_with_formulas() -> None:
    sources = [path for path in (ROOT / "vitviz" / "ui").rglob("*.py") if path.name != "texts.py"]
    assert sources and [path.name for path in sources if "gr.Markdown(" in path.read_text()] == []


def check_text(place: Locator, texts: tuple[str, ...]) -> None:
    shown = " ".join((place.text_content() or "").split())
    assert [text for text in texts if text not in shown] == []
    assert place.locator("a, img, b, em, del, code, pre, table, h1, ol, blockquote, .katex, .mermaid").count() == 0


def test_the_page_shows_every_text_to_the_letter(
    make_model: Callable[..., Model], own_address: str, browser: Browser, tmp_path: Path
) -> None:
    texts = markup(own_address)
    model = make_model(classes=len(texts))
    save_checkpoint(
        tmp_path / "model.safetensors",
        replace(model, labels=texts, card={f"fact {text}": text for text in texts}),
    )
    name = f"&amp; $$x^2$$ www.{own_address} [a](b) `c` _d_ *e* a@b.example.png"
    with (
        running_app(os.environ, "--checkpoint", str(tmp_path / "model.safetensors")) as address,
        opened_page(browser, address) as page,
    ):
        expect(canvas(page)).to_be_visible()
        # Of many classes the page names the first, up to a comma.
        check_text(page.locator("#vv-aside"), texts[:6])
        upload = {"name": name, "mimeType": "image/png", "buffer": b""}
        page.locator("#vv-photo input[type=file]").set_input_files(upload)
        notice = page.locator("#vv-notice")
        expect(notice).to_contain_text("an empty file")
        check_text(notice, (f"{name}: an empty file",))
        predictions = page.locator("#vv-predictions")
        shown = predictions.text_content() or ""
        assert sum(text in " ".join(shown.split()) for text in texts) >= 5
        assert predictions.locator("a, img, b, em, code, .katex").count() == 0
        page.get_by_text("About this model", exact=True).click()
        expect(page.locator("#vv-card")).to_be_visible()
        # Its own list and title.
        card = page.locator("#vv-card")
        shown = " ".join((card.text_content() or "").split())
        assert [text for text in texts if f"fact {text}: {text}" not in shown] == []
        assert card.locator("a, img, b, em, del, code, pre, table, h1, blockquote, .katex, .mermaid").count() == 0

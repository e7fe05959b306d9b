"""Takes the pictures of the app that the README and link previews show: ``python -m tests.screenshot [FILE]``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import expect

from tests.driver import opened_page, running_app, running_browser, settle
from tests.support.example import ROOT
from vitviz.ui.explorer.app_page import PREVIEW
from vitviz.ui.explorer.assets import FOLDER

OUTPUT = ROOT / "assets" / "screenshot.png"
# What the page opens on.
LINK = "method=attention&p.layer=6&p.head=5&p.query=6,10"
WIDTH, HEIGHT = 1400, 880
# Of link previews.
PREVIEW_SIZE = (1200, 630)


def take(path: Path) -> None:
    """Start the app, open its page, and save a screenshot."""
    with running_app(os.environ) as address, running_browser() as browser, opened_page(browser, address, LINK) as page:
        page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        page.evaluate("document.querySelectorAll('.vx-fold').forEach((each) => { each.open = false; })")
        settle(page)
        expect(page.locator(".vx-unless")).to_be_visible()
        page.screenshot(path=path)
    taken = Image.open(path).convert("RGB")
    upper = taken.crop((0, 0, WIDTH, WIDTH * PREVIEW_SIZE[1] // PREVIEW_SIZE[0]))
    upper.resize(PREVIEW_SIZE).save(FOLDER / PREVIEW, quality=60, optimize=True)
    # A palette takes a third of the bytes; dithered, it looks the same.
    taken.quantize(palette=taken.quantize(256)).save(path, optimize=True)


if __name__ == "__main__":
    take(Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT)

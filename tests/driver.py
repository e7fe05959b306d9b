"""The app in a process of its own, and a headless browser to drive it."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.browser import find_browser
from vitviz import Heatmap, Style

ROOT = Path(__file__).parents[1]
# With it the page opens.
EXAMPLE = ROOT / "assets" / "chelsea.jpg"
ARTEFACTS = Path(__file__).parent / "artefacts"
# The background services of the browser would look for hosts outside.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A camera that shows a test picture, and no question whether it may be used.
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    # The pages of a context share a process, which would take longer to start than what many tests do with it.
    "--renderer-process-limit=1",
)
# The command, in a process where transformers can be imported beside any build of torch.
WITH_PACKAGES = """import sys, tests.reference_packages
from vitviz.cli.command import main
from vitviz.isolation import shared_worker
shared_worker().preload = ("tests.torchvision_names",)
sys.exit(main(sys.argv[1:]))"""
expect.set_options(timeout=30_000)


@contextmanager
def running_app(environment: Mapping[str, str], *arguments: str, with_packages: bool = False) -> Iterator[str]:
    """The address that `python app.py` prints, or `vitviz app` with arguments.

    Args:
        environment: of the process.
        *arguments: of `vitviz app`.
        with_packages: whether the app imports transformers or open_clip, which takes seconds.
    """
    run = ["-c", WITH_PACKAGES] if with_packages else ["-m", "vitviz.cli"]
    own = [*run, "app", *arguments] if arguments else [str(ROOT / "app.py")]
    command = [sys.executable, "-u", *own]
    # No fixed port: another app on this machine may hold it.
    kept = {name: value for name, value in environment.items() if name != "GRADIO_SERVER_PORT"}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=kept, cwd=ROOT, **pipes) as app:
        assert app.stdout is not None
        printed = ""
        try:
            for line in app.stdout:
                printed += line
                found = re.search(r"http://127\.0\.0\.1:\d+", line)
                if found:
                    yield found[0]
                    break
            else:
                pytest.fail(f"the app printed no address: {printed}")
        finally:
            app.terminate()


@contextmanager
def running_browser() -> Iterator[Browser]:
    path = find_browser()
    assert path is not None, "no browser: run `python -m tests.browser`"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        # With an empty page, so that its process stays when another one is closed.
        browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
        yield browser


def new_page(browser: Browser) -> Page:
    """A page as large as a desktop's; the files of the app are fetched and compiled by the first one alone."""
    return browser.contexts[0].new_page()


@contextmanager
def opened_page(browser: Browser, address: str, link: str = "") -> Iterator[Page]:
    """The opened app; fails the test on a console error, a page error or a request that leaves this machine.

    Args:
        browser, address: where it is opened, and where it runs.
        link: what its address asks for.
    """
    wrong: list[str] = []
    page = new_page(browser)
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request", lambda sent: None if sent.url.startswith((address, "data:", "blob:")) else wrong.append(sent.url)
    )
    page.goto(f"{address}/?__theme=light{link and f'&{link}'}")
    page.get_by_role("tab", name="Maps").click()
    expect(canvas(page)).to_be_visible()
    yield page
    # What Gradio says of an error that no handler told of.
    wrong += page.locator(".toast-body").all_inner_texts()
    page.close()
    assert wrong == [], wrong


def canvas(page: Page) -> Locator:
    return page.locator("#vv-canvas img")


def caption(page: Page) -> Locator:
    return page.locator("#vv-caption")


def upload(page: Page, path: Path) -> None:
    page.locator("#vv-photo input[type=file]").set_input_files(path)


def click_at(picture: Locator, across: float, down: float) -> None:
    """Click at a fraction of a picture's width and height, which may be narrower than its element."""
    # A picture that is replaced while it is decoded is decoded anew.
    width, height, natural_width, natural_height = picture.evaluate(
        "async image => { while (!await image.decode().then(() => true, () => false));"
        " return [image.clientWidth, image.clientHeight, image.naturalWidth, image.naturalHeight] }"
    )
    scale = min(width / natural_width, height / natural_height)
    left, top = (width - natural_width * scale) / 2, (height - natural_height * scale) / 2
    x, y = left + across * natural_width * scale, top + down * natural_height * scale
    picture.click(position={"x": x, "y": y})


def shown(page: Page) -> np.ndarray:
    """What the canvas shows, as the page fetched it."""
    # As every browser does where the server has closed a connection that was kept open.
    response = page.request.get(canvas(page).get_attribute("src") or "", max_retries=1)
    assert response.ok
    return np.asarray(Image.open(io.BytesIO(response.body())).convert("RGB"), dtype=np.float32)


def says(heatmap: Heatmap) -> list[str]:
    """What the page must say about a map, computed without the app."""
    values = heatmap.values.numpy()
    row, column = np.unravel_index(values.argmax(), values.shape)
    return [heatmap.description, f"Strongest: patch ({row}, {column}) with {values.max():.3g}."]


def expect_map(page: Page, heatmap: Heatmap) -> None:
    for sentence in says(heatmap):
        expect(caption(page)).to_contain_text(sentence)
    low, high = float(heatmap.values.min()), float(heatmap.values.max())
    expect(page.locator("#vv-legend")).to_contain_text(f"{low:.3g}")
    expect(page.locator("#vv-legend")).to_contain_text(f"{high:.3g}")


def expect_picture(page: Page, heatmap: Heatmap, style: Style, mark: tuple[int, int] | None = None) -> None:
    expected = np.asarray(heatmap.resized(900).overlay(style, mark), dtype=np.float32)
    last = time.monotonic() + 30
    # The page fetches a new picture a little after it has shown the new caption.
    while not _alike(shown(page), expected):
        assert time.monotonic() < last, "the page shows another picture"
        page.wait_for_timeout(100)


def _alike(found: np.ndarray, expected: np.ndarray) -> bool:
    # The page gets a lossy WebP.
    return found.shape == expected.shape and float(np.abs(found - expected).mean()) < 4


def set_slider(page: Page, name: str, value: float) -> None:
    number = page.locator(f"#{name} input[type=number]")
    number.fill(str(value))
    number.press("Enter")


def open_panel(page: Page, name: str) -> Locator:
    """Open one of the panels below the picture."""
    page.locator(f"#{name} > button, #{name} .label-wrap").first.click()
    return page.locator(f"#{name}")

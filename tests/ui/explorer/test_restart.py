"""After a restart of its server, a page works on."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import vitviz
from tests.driver import app_process, canvas, caption, new_page, open_settings, patch_position, running_app, settle
from tests.support.example import EXAMPLE, ROOT
from tests.ui.explorer.page_driver import EXPLORER
from vitviz import Analysis, Model

pytestmark = [pytest.mark.browser, pytest.mark.process]


@pytest.mark.long
def test_after_a_restart_pages_work_on_with_the_same_picture(browser: Browser, bundled: Model, tmp_path: Path) -> None:
    """One that had all that it wanted, and one whose analysis was cut off."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    page, other, wrong = new_page(browser), new_page(browser), []
    for each in (page, other):
        each.on("pageerror", lambda error: wrong.append(str(error)))
    retry = page.get_by_role("button", name="Try again")
    shown = {name: vitviz.analyze(ROOT / "assets" / name, bundled) for name in (EXAMPLE.name, "rocket.jpg")}
    rocket, coffee = shown["rocket.jpg"], vitviz.analyze(ROOT / "assets" / "coffee.jpg", bundled)
    # Where no other server takes the place of the one that ends.
    alone = {**os.environ, "GRADIO_TEMP_DIR": "", "TMPDIR": str(tmp_path)}

    def shows(page: Page, analysis: Analysis) -> None:
        best = analysis.attention().token_map.strongest
        expect(caption(page)).to_contain_text(f"layer 7 of 0–7, mean of 6 heads. Strongest: patch {best} ")

    with app_process(alone, "--port", port) as (address, process):
        page.goto(f"{address}/?__theme=light&method=attention")
        # Not the picture with which it opens.
        page.get_by_role("button", name="Example: rocket").click()
        settle(page)
        shows(page, rocket)
        other.goto(f"{address}/?example=coffee.jpg&method=attention")
        settle(other)
        shows(other, coffee)
        # It is cut off, however soon it would have been there.
        open_settings(other)
        other.locator(".vx-pixels").fill("128")
        process.send_signal(signal.SIGSTOP)
        with other.expect_request(lambda sent: sent.url.endswith("/run")):
            other.locator(".vx-pixels").press("Enter")
        expect(other.locator(".vx-busy")).to_be_visible()
        process.kill()
    # A page behind another one is drawn once a second.
    page.bring_to_front()
    page.select_option(".vx-method", "rollout")
    expect(caption(page)).to_contain_text("The server does not answer")
    expect(retry).to_be_visible()
    # What needs no server is there.
    page.select_option(".vx-method", "attention")
    shows(page, rocket)
    expect(retry).not_to_be_visible()
    page.select_option(".vx-method", "rollout")
    expect(retry).to_be_visible()
    with running_app(alone, "--port", port):
        retry.click()
        best = rocket.rollout().token_map.strongest
        expect(caption(page)).to_contain_text(f"layers 0 to 7. Strongest: patch {best}")
        expect(page.locator(".vx")).to_have_attribute("data-state", "ready")
        expect(retry).not_to_be_visible()
        page.select_option(".vx-method", "attention")
        canvas(page).hover(position=patch_position(page, rocket, 6, 1))
        best = rocket.attention(query=(6, 1)).token_map.strongest
        expect(caption(page)).to_contain_text(f"Strongest: patch {best}")
        settle(page)
        page.close()
        # What was cut off is computed after all, or the picture before is shown: never something else.
        other.bring_to_front()
        settle(other)
        side = other.evaluate(f"{EXPLORER}.panes[0].facts.resolution")
        shows(other, vitviz.analyze(ROOT / "assets" / "coffee.jpg", bundled, resolution=side))
        other.get_by_role("button", name="Example: rocket").click()
        settle(other)
        side = other.evaluate(f"{EXPLORER}.panes[0].facts.resolution")
        shows(other, vitviz.analyze(ROOT / "assets" / "rocket.jpg", bundled, resolution=side))
        other.close()
    assert wrong == []

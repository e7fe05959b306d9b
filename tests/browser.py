"""The browser that the page is tested in: finds one, and installs Chromium where there is none.

``python -m tests.browser`` prints what it found or installed. ``VITVIZ_BROWSER`` names one that is to be used.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

VARIABLE = "VITVIZ_BROWSER"
ADVICE = f"Install Chromium or Google Chrome, or set {VARIABLE} to its path"

# The first has no window to draw, and opens a page with two thirds of the work.
COMMANDS = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
)
MAC_APPLICATIONS = (
    "Google Chrome.app/Contents/MacOS/Google Chrome",
    "Chromium.app/Contents/MacOS/Chromium",
    "Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
)
ASK_PLAYWRIGHT = """
from playwright.sync_api import sync_playwright

with sync_playwright() as playwright:
    print(playwright.chromium.executable_path)
"""
DEBIAN_BROWSERS = ("chromium-headless-shell", "chromium")
# A font to set its text in, and a library that playwright's driver needs and a small Debian lacks.
DEBIAN_PACKAGES = ("fonts-dejavu-core", "libatomic1")
SECONDS_TO_ANSWER = 20


def find_browser() -> Path | None:
    """The browser that VITVIZ_BROWSER names; where it is not set, the first one here that starts."""
    named = os.environ.get(VARIABLE)
    places = [shutil.which(named)] if named else browser_places()
    return next((Path(place) for place in places if place and version(place)), None)


def version(browser: str | Path) -> str | None:
    """What a browser says it is. A stand-in that only tells how to install one has no version."""
    return answer(browser, "--version")


def browser_places() -> Iterator[str | Path | None]:
    """Where a browser may be, in the order of preference. Not every place exists."""
    yield from map(shutil.which, COMMANDS)
    if sys.platform == "darwin":
        for folder in (Path("/Applications"), Path.home() / "Applications"):
            yield from (folder / application for application in MAC_APPLICATIONS)
    yield playwright_chromium()


def playwright_chromium() -> str | None:
    """Where playwright keeps the Chromium that it downloads; None where playwright itself does not run."""
    return answer(sys.executable, "-c", ASK_PLAYWRIGHT)


def install_with_apt() -> None:
    """Debian's Chromium; nothing on its relatives that package Chromium as a snap alone."""
    root = as_root()
    if root is None or shutil.which("apt-get") is None:
        return
    apt = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
    run(*apt, "update")
    for browser in DEBIAN_BROWSERS:
        offer = answer("apt-cache", "show", "--no-all-versions", browser)
        if offer and not re.search(r"\bsnapd?\b", offer):
            run(*apt, "install", "-y", "--no-install-recommends", browser, *DEBIAN_PACKAGES)
            return


def install_with_brew() -> None:
    """Homebrew's Chromium."""
    if sys.platform == "darwin" and shutil.which("brew"):
        run("env", "NONINTERACTIVE=1", "brew", "install", "--cask", "chromium")


def install_with_playwright() -> None:
    """Playwright's own build, with the libraries it needs where they may be installed."""
    libraries = ["--with-deps"] if sys.platform == "linux" and as_root() is not None else []
    run(sys.executable, "-m", "playwright", "install", *libraries, "chromium")


INSTALLERS: tuple[Callable[[], None], ...] = (install_with_apt, install_with_brew, install_with_playwright)


def as_root() -> list[str] | None:
    """What to put before a command to run it as root without being asked anything."""
    if os.geteuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    return sudo if answer(*sudo, "echo", "yes") else None


def run(*command: str) -> None:
    """Run a command that asks nothing, its output shown. What it achieved is for the caller to look at."""
    subprocess.run(command, stdin=subprocess.DEVNULL)


def answer(*command: str | Path) -> str | None:
    """What a command prints; None where it cannot be run, fails or takes too long."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS_TO_ANSWER
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def main() -> int:
    """Print the browser found, after installing one if need be."""
    browser = find_browser()
    if browser is None and not os.environ.get(VARIABLE):
        for install in INSTALLERS:
            install()
            browser = find_browser()
            if browser:
                break
    if browser is None:
        print(ADVICE, file=sys.stderr)
        return 1
    print(f"{browser}: {version(browser)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

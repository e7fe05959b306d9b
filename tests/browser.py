"""Finds the browser that the page is tested in, and installs Chromium where there is none.

``python -m tests.browser`` prints its path and version. ``VITVIZ_BROWSER`` names the one to use.
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

# The headless shell draws no window, and opens a page with two thirds of the work.
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
# A font, and a library that playwright's driver needs and a minimal Debian lacks.
DEBIAN_PACKAGES = ("fonts-dejavu-core", "libatomic1")
ANSWER_SECONDS = 60


def find_browser() -> Path | None:
    """The browser that VITVIZ_BROWSER names; without it, the first installed one that starts."""
    named = os.environ.get(VARIABLE)
    paths = [shutil.which(named)] if named else browser_paths()
    return next((Path(path) for path in paths if path and version(path)), None)


def version(browser: str | Path) -> str | None:
    """What a browser answers to ``--version``; None for a stub that only explains how to install one."""
    return answer(browser, "--version")


def browser_paths() -> Iterator[str | Path | None]:
    """The paths where a browser may be, preferred ones first. Not every path exists."""
    yield from map(shutil.which, COMMANDS)
    if sys.platform == "darwin":
        for folder in (Path("/Applications"), Path.home() / "Applications"):
            yield from (folder / application for application in MAC_APPLICATIONS)
    yield playwright_chromium()


def playwright_chromium() -> str | None:
    """The path of the Chromium that playwright downloads; None where playwright itself does not run."""
    return answer(sys.executable, "-c", ASK_PLAYWRIGHT)


def install_with_apt() -> None:
    """Install Debian's Chromium. Does nothing on derivatives that package Chromium only as a snap."""
    root = root_prefix()
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
    """Install Homebrew's Chromium."""
    if sys.platform == "darwin" and shutil.which("brew"):
        run("env", "NONINTERACTIVE=1", "brew", "install", "--cask", "chromium")


def install_with_playwright() -> None:
    """Install playwright's own build, with the libraries that it needs where that is permitted."""
    libraries = ["--with-deps"] if sys.platform == "linux" and root_prefix() is not None else []
    run(sys.executable, "-m", "playwright", "install", *libraries, "chromium")


INSTALLERS: tuple[Callable[[], None], ...] = (install_with_apt, install_with_brew, install_with_playwright)


def root_prefix() -> list[str] | None:
    """The words that run a command as root without a password prompt; None where that is impossible."""
    if os.geteuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    return sudo if answer(*sudo, "echo", "yes") else None


def run(*command: str) -> None:
    """Run a command without input and show its output. The caller checks what it achieved."""
    subprocess.run(command, stdin=subprocess.DEVNULL)


def answer(*command: str | Path) -> str | None:
    """The output of a command; None if it cannot be run, fails or takes too long."""
    try:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def main() -> int:
    """Print the path and version of the browser, after installing one if need be."""
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

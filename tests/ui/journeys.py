"""Random journeys through the page: at the end of each, all that it shows is what the library answers.

Every journey has a seed of its own, which is printed; with VITVIZ_TEST_SEED=7, that one is the first.
"""

from __future__ import annotations

import random
import re
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from playwright.sync_api import Browser, Error, Page

from tests.driver import (
    EXPLORER,
    UNFOLD,
    box_of,
    canvas,
    close_menus,
    new_page,
    open_menu,
    open_settings,
    settle,
    watch_errors,
)
from tests.ui.answers import Library, check_page
from tests.ui.explorer.page_driver import made, small_app
from vitviz import METHODS
from vitviz.errors import VitvizError
from vitviz.ui.pictures import EXAMPLES
from vitviz.ui.server.settings import ServerSettings
from vitviz.weights import BUNDLED

STEPS = 8
# Between two steps, in seconds: some come while what the one before asked for is still being computed.
PAUSES = (0, 0, 0.05, 0.3, 1)
LINKS = (
    "",
    "example=rocket.jpg&p.layer=0&p.head=1",
    f"model={BUNDLED[0]}&method=relevance&p.target=3&p.query=2,3",
    f"model={BUNDLED[0]}&example=coffee.jpg&fit=native&resolution=48&method=rollout&p.start_layer=1&p.query=3,5",
    "method=grad_cam&p.target=2&colormap=viridis&smooth=true",
    "example=astronaut.jpg&fit=crop&p.direction=column&p.query=1,1&grid=true",
)


class Journey:
    """One visitor, whose choices follow from a seed.

    Args:
        page: the opened page.
        address: of the app.
        seed: of the choices.
        errors: what went wrong so far.
    """

    def __init__(self, page: Page, address: str, seed: int, errors: list[str]) -> None:
        self.page, self.address, self.random, self.errors = page, address, random.Random(seed), errors
        self.steps: list[str] = []

    def walk(self) -> None:
        kinds: list[Callable[[], str]] = [
            self.picture,
            self.model,
            self.fit,
            self.resolution,
            self.method,
            self.target,
            self.token,
            self.layer,
            self.link,
            self.back,
        ]
        for _ in range(STEPS):
            self.steps.append("")
            step = self.random.choice(kinds)
            self.steps[-1] = step.__name__
            self.steps[-1] = f"{step.__name__} {step()}".strip()
            self.page.wait_for_timeout(1000 * self.random.choice(PAUSES))

    def picture(self) -> str:
        name = self.random.choice(EXAMPLES)
        open_menu(self.page, "pictures")
        self.page.locator(f'.vx-all-examples button[data-example="example:{name}"]').click()
        return name

    def model(self) -> str:
        name = self.random.choice(("", BUNDLED[0]))
        open_menu(self.page, "models")
        self.page.locator(f'.vx-menu button[data-model="{name}"]').click()
        return name or "start"

    def fit(self) -> str:
        name = self.random.choice(("squash", "crop", "native"))
        open_settings(self.page).locator(".vx-fit").select_option(name)
        return name

    def resolution(self) -> str:
        pixels = self.random.choice((24, 32, 40, 48))
        written = open_settings(self.page).locator(".vx-pixels")
        written.fill(str(pixels))
        written.press("Enter")
        return str(pixels)

    def method(self) -> str:
        names = self.page.locator(".vx-method option").evaluate_all("all => all.map((option) => option.value)")
        name = self.random.choice([name for name in names if not METHODS[name].reports])
        self.page.locator(".vx-method").select_option(name)
        return str(name)

    def target(self) -> str:
        place = self.random.randrange(5)
        # Predictions of another picture may take the place of these at any moment.
        self.page.evaluate("(place) => document.querySelectorAll('.vx-predictions button')[place]?.click()", place)
        return str(place)

    def token(self) -> str:
        close_menus(self.page)
        edges = box_of(canvas(self.page))
        across, down = self.random.uniform(0.3, 0.7), self.random.uniform(0.3, 0.7)
        canvas(self.page).click(position={"x": across * edges["width"], "y": down * edges["height"]})
        return f"{across:.3f} {down:.3f}"

    def layer(self) -> str:
        key = self.random.choice("[]0m1")
        # In the field of the resolution, a digit would be a digit.
        self.page.evaluate("document.activeElement.blur()")
        self.page.keyboard.press(key)
        return key

    def link(self) -> str:
        link = self.random.choice(LINKS)
        self.leave(lambda: self.page.goto(f"{self.address}/?__theme=light&{link}"))
        return link

    def back(self) -> str:
        # Not out of the app: to what is of another origin, a page cannot know the way.
        if not self.page.evaluate("navigation.canGoBack"):
            return "no further"
        self.leave(self.page.go_back)
        return ""

    def leave(self, go: Callable[[], object]) -> None:
        """Go somewhere else, and wait until the page is there; of what it leaves, Gradio says that it was cut off."""
        go()
        self.page.wait_for_function(f"() => {EXPLORER}?.panes[0].painter")
        self.page.evaluate(UNFOLD)
        self.errors[:] = [text for text in self.errors if not re.match("AbortError|Unexpected error Connection", text)]


def travel(browser: Browser, address: str, library: Library, seeds: Sequence[int]) -> list[int]:
    """Go through the journeys of these seeds; returns the seeds of those at whose end something was wrong."""
    failed = []
    for seed in seeds:
        wrong: list[str] = []
        page, started = new_page(browser), time.monotonic()
        journey = Journey(page, address, seed, wrong)
        try:
            with watch_errors(page, address, wrong):
                page.goto(f"{address}/?__theme=light")
                settle(page)
                page.evaluate(UNFOLD)
                journey.walk()
                check_page(page, library)
                assert wrong == [], wrong
        except (AssertionError, Error, KeyError, VitvizError) as error:
            failed.append(seed)
            place = traceback.extract_tb(error.__traceback__)[-1]
            print(f"seed {seed} FAILED: {type(error).__name__}: {str(error)[:1500]}")
            print(f"  at {place.name}, line {place.lineno}: {place.line}")
            print(f"  steps: {journey.steps}")
            print(f"  address: {page.url}\n  caption: {page.locator('.vx-status').all_inner_texts()}")
            print(f"  state: {page.evaluate(f'{EXPLORER}?.store.state')}\n  console: {wrong}")
        else:
            print(f"seed {seed}: {time.monotonic() - started:.1f} s, {', '.join(journey.steps)}")
        page.close()
    return failed


@contextmanager
def journeys_app(server_settings: ServerSettings | None = None) -> Iterator[tuple[str, Library]]:
    """An app that starts with a small model, beside which the bundled one stands in the menu, and its answers."""
    model = made(24, 24, 0, 4)
    with small_app(model, server_settings) as app:
        yield app.address, Library(model)

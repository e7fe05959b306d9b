"""Fixtures that several rooms of tests share."""

from __future__ import annotations

import collections
import gc
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image

import vitviz
from tests.support.example import COARSE, COARSEST, EXAMPLE, FILES
from tests.support.loops import run
from tests.support.makers import SMALL
from tests.workers import pytest_addoption as pytest_addoption
from tests.workers import pytest_runtestloop as pytest_runtestloop
from vitviz import Analysis, Model, Preprocessing, VisionTransformer, ViTConfig
from vitviz.worker import shared_worker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    # Gradio takes seconds, which most tests do not need; those of a graphics card run where neither is installed.
    from tests.hub_server import HubServer
    from tests.ui.answers import Library
    from vitviz.ui.pictures import Upload

# Everything that is imported and collected stays alive, so the garbage collector need not look through it.
gc.disable()
# The small networks of the tests are slower on several threads, whose waiting takes a processor from other tests, too.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Lets its processes import transformers beside any build of torch.
shared_worker().preload = ("tests.torchvision_names", "tests.support.priorities:keep", *shared_worker().preload)
# What a test logs is not printed: some look at all that is.
logging.getLogger().addHandler(logging.NullHandler())
DURATIONS = "vitviz/durations"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        for fixture, mark in (("browser", pytest.mark.browser), ("address", pytest.mark.process)):
            if fixture in fixtures:
                item.add_marker(mark)
    marks: dict[Path, set[str]] = {}
    counts = collections.Counter(item.path for item in items)
    for item in items:
        marks.setdefault(item.path, set()).update(mark.name for mark in item.iter_markers())
    # The slowest files start first, so that none of them runs alone at the end: by the last run, or else by what
    # they need.
    cache = getattr(config, "cache", None)
    seconds = {} if cache is None else cache.get(DURATIONS, {})

    def order(item: pytest.Item) -> tuple[float, bool, bool, bool, int]:
        names = marks[item.path]
        known = seconds.get(str(item.path.relative_to(config.rootpath)), 0.0)
        is_slow = not names.isdisjoint(("parity", "hostile", "slow"))
        return -known, "browser" not in names, "process" not in names, not is_slow, -counts[item.path]

    items.sort(key=order)


class FileDurations:
    """Adds up what each file takes, for the order of the next run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.seconds = config, collections.Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        cache = getattr(self.config, "cache", None)
        if cache is not None:
            cache.set(DURATIONS, {**cache.get(DURATIONS, {}), **self.seconds})


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(FileDurations(config))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    # Repeats the failed tests below the count, so that they are the last lines of a log.
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    for outcome in ("error", "failed") if reporter else ():
        for report in reporter.stats.get(outcome, ()):
            reporter.write_line(f"{outcome}: {report.nodeid}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.fixture(autouse=True)
def seed() -> None:
    # Seeds the processor's generator only: torch.manual_seed keeps a traceback per call for missing accelerators.
    torch.default_generator.manual_seed(0)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub of this machine, whose clients in this process have an empty cache."""
    from tests.hub_server import HubServer

    with HubServer() as server:
        server.use(monkeypatch, tmp_path / "home")
        yield server


@pytest.fixture(scope="session")
def bundled() -> Model:
    """The model that ships with vitviz."""
    return vitviz.load()


@pytest.fixture
def make_network() -> Callable[..., VisionTransformer]:
    """Small networks with random weights: ``make_network(register_tokens=4, pooling="mean", ...)``."""

    def make(**changes: object) -> VisionTransformer:
        network = VisionTransformer(ViTConfig(**{**SMALL, **changes})).eval().requires_grad_(False)
        # With the library's initial weights attention is nearly uniform, which would hide mistakes.
        for parameter in network.parameters():
            parameter.normal_(0, 0.3)
        return network

    return make


@pytest.fixture
def make_model(make_network: Callable[..., VisionTransformer]) -> Callable[..., Model]:
    """Small models with random weights; takes the arguments of ``make_network``."""

    def make(fit: str = "squash", **changes: object) -> Model:
        network = make_network(**changes)
        config = network.config
        preprocessing = Preprocessing(config.image_height, config.image_width, (0.5,) * 3, (0.5,) * 3, fit)
        return Model("small", network, preprocessing, tuple(f"class {index}" for index in range(config.classes)))

    return make


class Log(logging.Handler):
    """What is logged, as pytest's own fixture of the name has it, whose plugin reads all loggers six times a test."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += f"{self.format(record)}\n"
        self.records.append(record)

    @contextmanager
    def at_level(self, level: int) -> Iterator[None]:
        root = logging.getLogger()
        before = root.level
        root.setLevel(level)
        yield
        root.setLevel(before)


@pytest.fixture
def caplog() -> Iterator[Log]:
    """What a test logs."""
    log = Log()
    logging.getLogger().addHandler(log)
    yield log
    logging.getLogger().removeHandler(log)


# The app and a browser.


@pytest.fixture(scope="session", autouse=True)
def _app_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Apps in this process keep their files in a folder that no other process deletes when it ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FILES, str(tmp_path_factory.mktemp("files")))
        yield


@pytest.fixture(scope="session")
def address(bundled: Model) -> Iterator[str]:
    """The address of the app, which runs in this process, as another would take seconds to start."""
    from tests.ui.explorer.page_driver import small_app

    with small_app(bundled) as app:
        yield app.address


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless browser."""
    from tests.driver import running_browser

    with running_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The opened app, watched for errors."""
    from tests.driver import page_at

    with page_at(browser, address) as page:
        yield page


@pytest.fixture(scope="session")
def example(bundled: Model) -> Analysis:
    """The analysis that the page shows first."""
    return vitviz.analyze(EXAMPLE, bundled)


@pytest.fixture(scope="session")
def coarse_example(bundled: Model) -> Analysis:
    """The example with a quarter of its patches, for slow methods."""
    return vitviz.analyze(EXAMPLE, bundled, resolution=COARSE)


@pytest.fixture(scope="session")
def coarsest_example(bundled: Model) -> Analysis:
    """The example with so few patches that all maps and scores are fast."""
    return vitviz.analyze(EXAMPLE, bundled, resolution=COARSEST)


@pytest.fixture(scope="session")
def library(bundled: Model) -> Library:
    """The answers for a page of the app as it starts."""
    from tests.ui.answers import Library

    return Library(bundled)


@pytest.fixture
def picture(tmp_path: Path) -> Upload:
    """A small uploaded picture."""
    from vitviz.ui.pictures import Upload

    noise = np.random.default_rng(0).integers(0, 255, (24, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    return Upload(tmp_path / "noise.png", "noise.png")

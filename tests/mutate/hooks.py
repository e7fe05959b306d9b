"""A plugin of pytest for both runs: the one that makes the map, and that of the tests of one place."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.mutate.processes import RUNNING, context_of

# The variables that name the folder of a map, and of a run.
MAP, RUN = "VITVIZ_MUTATE_MAP", "VITVIZ_MUTATE_RUN"
# Changed code may ask for any amount.
MAX_MEMORY_BYTES = 8 * 1024**3


def pytest_configure(config: pytest.Config) -> None:
    if MAP in os.environ:
        config.pluginmanager.register(Recorder(Path(os.environ[MAP])))
    if RUN in os.environ:
        config.pluginmanager.register(Runner(Path(os.environ[RUN])))


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def fixture_name(fixture: pytest.FixtureDef[Any]) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"


class Recorder:
    """Tells coverage which test runs, or which fixture of a wider scope is made, and records the time of each."""

    def __init__(self, folder: Path) -> None:
        self.rows = folder / f"tests-{os.getpid()}.jsonl"
        self.running = folder / f"running-{os.getpid()}"
        self.name = ""
        self.fixture_seconds = 0.0
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.switch("")
        os.environ[RUNNING] = str(self.running)

    def switch(self, name: str) -> str:
        """Name what runs from here on; returns what ran before."""
        before, self.name = self.name, name
        context = context_of(name) if name else ""
        self.running.write_text(context)
        current = coverage.Coverage.current()
        assert current is not None
        current.switch_context(context)
        return before

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.fixture_seconds = 0.0
        self.switch(item.nodeid)
        yield
        self.switch("")
        seconds = self.seconds.pop(item.nodeid, 0.0) - self.fixture_seconds
        fixtures = [fixture_name(each) for each in wide_fixtures(item)]
        row = {"test": item.nodeid, "seconds": round(seconds, 4), "fixtures": fixtures}
        _append(self.rows, {**row, "failed": item.nodeid in self.failed})

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        if fixturedef.scope == "function":
            yield
            return
        outer, before, start = self.switch(fixture_name(fixturedef)), self.fixture_seconds, time.monotonic()
        yield
        self.switch(outer)
        seconds = time.monotonic() - start
        self.fixture_seconds = before + seconds
        _append(self.rows, {"fixture": fixture_name(fixturedef), "seconds": round(seconds, 4)})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.add(report.nodeid)


def wide_fixtures(item: pytest.Item) -> list[pytest.FixtureDef[Any]]:
    """The fixtures of a test that it shares with others."""
    information = getattr(item, "_fixtureinfo", None)
    found: dict[str, Sequence[pytest.FixtureDef[Any]]] = information.name2fixturedefs if information else {}
    return [fixtures[-1] for _, fixtures in sorted(found.items()) if fixtures[-1].scope != "function"]


class Runner:
    """Runs the tests of a list, in its order, and records the start of each and the first that fails."""

    def __init__(self, folder: Path) -> None:
        self.order = {test: number for number, test in enumerate(json.loads((folder / "tests.json").read_text()))}
        self.events = folder / "events.jsonl"
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))

    # Last, as tests/conftest.py has an order of its own.
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order), key=lambda item: self.order[item.nodeid]
        )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        _append(self.events, {"test": nodeid, "time": time.time()})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            _append(self.events, {"failed": report.nodeid})

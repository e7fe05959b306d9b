"""The app as a Hugging Face Space: the front matter, and a start with the requirements alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distributions, packages_distributions, requires, version
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.driver import running_app
from tests.support.example import ROOT
from tests.support.waiting import HANG_SECONDS, wait_until

pytestmark = pytest.mark.process


# The front matter of the README.


def text(pattern: str = r"\S(.*\S)?") -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


COLOUR = text("red|yellow|green|blue|indigo|purple|pink|gray")
# The keys of ours, as "Spaces Configuration Reference" in the documentation of the Hugging Face hub has them,
# huggingface.co/docs/hub, August 2026; `license` is in its "Licenses".
DOCUMENTED: dict[str, Callable[[Any], bool]] = {
    "title": text(),
    "emoji": text(r"[\u2190-\u2bff\U0001f000-\U0001faff]\ufe0f?"),
    "colorFrom": COLOUR,
    "colorTo": COLOUR,
    "sdk": text("gradio|docker|static"),
    "python_version": text(r"3\.\d+(\.\d+)?"),
    "sdk_version": text(r"\d+\.\d+\.\d+"),
    "app_file": text(),
    # The hub cuts off longer texts.
    "short_description": text(".{1,60}"),
    "tags": lambda value: isinstance(value, list) and value != [] and all(map(text(), value)),
    "pinned": lambda value: isinstance(value, bool),
    "license": text(r"[a-z0-9.-]+"),
}
# "Spaces ZeroGPU" there; the newest of torch since September 2026.
LENDING_PYTHONS = ("3.12.12", "3.10.13")
LENDING_TORCHES = ("2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0")


@pytest.fixture(scope="module")
def front_matter() -> dict[str, Any]:
    found = re.match(r"---\n(.*?)^---\n\n# ", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return yaml.safe_load(found[1])


def requirement(name: str) -> Requirement:
    return next(each for each in REQUIRED if each.name == name)


REQUIRED = [
    Requirement(line) for line in (ROOT / "requirements.txt").read_text().splitlines() if line and line[0] != "#"
]
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def test_every_key_of_the_front_matter_is_documented_and_has_a_legal_value(front_matter: dict[str, Any]) -> None:
    needed = {"title", "emoji", "colorFrom", "colorTo", "sdk", "sdk_version", "app_file", "license"}
    assert needed <= front_matter.keys() <= DOCUMENTED.keys()
    assert [key for key, value in front_matter.items() if not DOCUMENTED[key](value)] == []


def test_the_front_matter_agrees_with_the_project(front_matter: dict[str, Any]) -> None:
    assert (ROOT / front_matter["app_file"]).is_file() and front_matter["sdk"] == "gradio"
    licence = re.search(r'^license = "(.+)"$', PYPROJECT, re.MULTILINE)
    assert licence is not None and front_matter["license"] == licence[1].lower()
    python = front_matter["python_version"]
    assert f'"Programming Language :: Python :: {".".join(python.split(".")[:2])}"' in PYPROJECT
    # Nothing is fetched, not even by the host.
    assert "preload_from_hub" not in front_matter


def test_the_versions_are_tested_ones_and_those_of_the_host_that_lends_cards(front_matter: dict[str, Any]) -> None:
    gradio, lowest = requirement("gradio"), r"gradio>=(\d+\.\d+)"
    assert front_matter["sdk_version"] in gradio.specifier
    found = re.search(lowest, (ROOT / "requirements.txt").read_text())
    assert found is not None and front_matter["sdk_version"] in (f"{found[1]}.0", version("gradio"))
    assert front_matter["python_version"] in LENDING_PYTHONS
    assert any(each in requirement("torch").specifier for each in LENDING_TORCHES)


# A start as on a Space, with only the requirements and without a network.

WATCHED = """
import json, os, sys, threading
from importlib.machinery import PathFinder
from pathlib import Path

HIDDEN, folder = json.loads(os.environ["HIDDEN"]), Path(os.environ["LOG"])
ASKED = {"socket.getaddrinfo": 0, "socket.gethostbyname": 0, "socket.connect": 1, "socket.sendto": 1}


class Required(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, context=None):
        return [] if context is not None and context.name == "vitviz" else super().find_distributions(context)


def watch(event, arguments):
    if event not in ASKED:
        return
    asked = arguments[ASKED[event]]
    host = asked if ASKED[event] == 0 else asked[0] if isinstance(asked, tuple) else None
    if host in ("127.0.0.1", "localhost", "::1", None):
        names = sorted({name.partition(".")[0] for name in sys.modules})
        # Another thread may be here, too, and the test reads it meanwhile.
        part = folder / f"loaded {threading.get_ident()}"
        part.write_text(json.dumps(names))
        os.replace(part, folder / "loaded")
        return
    with (folder / "outside").open("a") as log:
        log.write(f"{event} {asked!r}\\n")
    raise ConnectionRefusedError(event)


sys.meta_path[:] = [Required if finder is PathFinder else finder for finder in sys.meta_path]
sys.addaudithook(watch)
"""


def installed() -> set[str]:
    """The names of the distributions that the requirements install, dependencies included."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = list(REQUIRED)
    here = {canonicalize_name(each.metadata["Name"]) for each in distributions()}
    while waiting:
        one = waiting.pop()
        name, extras = canonicalize_name(one.name), frozenset(one.extras)
        if name not in here or (name, extras) in found:
            continue
        found.add((name, extras))
        for other in map(Requirement, requires(name) or ()):
            if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                waiting.append(other)
    return {name for name, _ in found}


@dataclass(frozen=True)
class Start:
    """The result of `python app.py`: its output, imports, connection attempts and cache."""

    config: dict[str, Any]
    health: int
    loaded: set[str]
    hidden: set[str]
    outside: str
    cached: list[Path]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    folder, cache = tmp_path_factory.mktemp("start"), tmp_path_factory.mktemp("cache")
    (folder / "sitecustomize.py").write_text(WATCHED)
    (folder / "outside").touch()
    brought = installed()
    hidden = {
        name
        for name, owners in packages_distributions().items()
        if name != "vitviz" and not brought & {canonicalize_name(owner) for owner in owners}
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "GRADIO_"))}
    environment |= {"HIDDEN": json.dumps(sorted(hidden)), "LOG": str(folder), "PYTHONPATH": str(folder)}
    environment["HF_HOME"] = str(cache)
    with running_app(environment) as address:
        config = httpx.get(f"{address}/config", timeout=HANG_SECONDS).json()
        health = httpx.get(f"{address}/health", timeout=HANG_SECONDS).status_code
        # The app writes this at its first request to itself, which may be late on a busy machine.
        wait_until((folder / "loaded").exists)
    loaded = set(json.loads((folder / "loaded").read_text()))
    return Start(config, health, loaded, hidden, (folder / "outside").read_text(), list(cache.rglob("*")))


def test_the_app_starts_with_the_requirements_and_nothing_else(start: Start) -> None:
    assert start.config["title"] == "vitviz"
    assert {"vitviz", "gradio", "torch"} <= start.loaded
    # Packages that only the tests need.
    assert {"pytest", "transformers", "captum"} <= start.hidden
    assert not start.loaded & start.hidden


def test_the_app_fetches_nothing_at_its_start_and_reports_to_nobody(start: Start) -> None:
    assert start.outside == "" and [path for path in start.cached if path.is_file()] == []
    assert start.config["analytics_enabled"] is False


def test_it_is_well_without_being_installed(start: Start) -> None:
    assert start.health == 200


def test_the_entry_is_short_and_launches_only_when_it_is_run() -> None:
    source = (ROOT / "app.py").read_text()
    assert len(source.splitlines()) <= 20
    assert re.search(r"^demo = ", source, re.MULTILINE) and re.search(r"^set_up_process\(", source, re.MULTILINE)
    before, _, after = source.partition('if __name__ == "__main__":\n')
    assert "serve(" not in before and "serve(demo)" in after

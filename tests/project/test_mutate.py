"""Small changes of the code: which are drawn, which tests are run for each, and what the verdict is."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from coverage import CoverageData

from tests.mutate import places, reach, runs
from tests.mutate.places import Place
from tests.mutate.processes import context_of

MUTATE = Path(runs.__file__).parent
# A statement, a kind of change, and the changed statement.
CHANGED = [
    ("x = a < b", "compare", "x = (a <= b)"),
    ("x = a <= b < c", "compare", "x = (a < b < c)"),
    ("x = a not in b", "compare", "x = (a in b)"),
    ("x = a is None", "compare", "x = (a is not None)"),
    ("x = (a or b) and c", "boolean", "x = ((a or b) or c)"),
    ("x = a // b", "arithmetic", "x = (a / b)"),
    ("x = a**b", "arithmetic", "x = (a * b)"),
    ("x += y", "arithmetic", "x -= y"),
    ("x = not (a or b)", "not", "x = (a or b)"),
    ("x = 0.5", "number", "x = 1.5"),
    ("x = y[-1]", "number", "x = y[0]"),
    ("x = f(exact=True)", "truth", "x = f(exact=False)"),
    ("if a:\n    pass", "condition", "if (not a):\n    pass"),
    ("x = a if é < b else c", "condition", "x = a if (not é < b) else c"),
    ("def f():\n    return a", "return", "def f():\n    return None"),
    ("def f(*, a='b'): ...", "default", "def f(*, a=None): ..."),
    ("f(\n    x\n)", "call", "pass"),
    ("x = values.argmax(1)", "extreme", "x = values.argmin(1)"),
    ("x = min(a, b)", "extreme", "x = max(a, b)"),
    ("for a in b:\n    break", "jump", "for a in b:\n    continue"),
]
LEFT_ALONE = [
    '"""A text of 3 words."""',
    "x: Literal[1] | None",
    "def f(a: int | str = None) -> A | B: ...",
    "Size = int | tuple[int, int]",
    "if TYPE_CHECKING:\n    x = 1",
    "class A:\n    def __repr__(self):\n        return 1",
    "raise ValueError('at most', LIMIT + 1)",
    "x = f'{a + 1} {b if c else d}'",
    "x = a + 'text' + b",
    "x = zip(a, b, strict=True)",
    "x = isinstance(a, int | float)",
    "@cache(size=1)\nclass A: ...",
]


@pytest.mark.parametrize(("statement", "kind", "changed"), CHANGED)
def test_each_kind_changes_the_text_as_its_name_says(statement: str, kind: str, changed: str) -> None:
    source = statement.encode()
    first = next(place for place in places.places("module.py", source) if place.kind == kind)
    assert first.change(source).decode() == changed


@pytest.mark.parametrize("statement", LEFT_ALONE)
def test_what_no_test_need_notice_is_left_alone(statement: str) -> None:
    assert places.places("module.py", statement.encode()) == []


BEFORE = """LIMIT = 3

def first(a):
    return a + 1 if a < LIMIT else max(a, 7)
"""
AFTER = '"""Text."""\n\ndef new(b):\n    return not b - 2\n\n' + BEFORE + "\n\ndef last():\n    first(8)\n"


def test_a_place_is_drawn_again_after_an_edit_elsewhere() -> None:
    before, after = (places.places("module.py", text.encode()) for text in (BEFORE, AFTER))
    assert [place.identity for place in before][:2] == ["module.py::::number::0", "module.py::first::return::0"]
    assert [place.line for place in before if place.name] == [4] * (len(before) - 1)
    kept = {place.identity for place in before}
    orders = {tuple(place.identity for place in places.rank(before, seed)) for seed in range(8)}
    assert len(orders) == 8
    for seed in range(8):
        drawn, again = (places.rank(found, seed) for found in (before, after))
        assert [place.identity for place in again if place.identity in kept] == [place.identity for place in drawn]
        assert places.rank(reversed(before), seed) == drawn


def test_the_draw_takes_the_places_of_the_whole_package(tmp_path: Path) -> None:
    (tmp_path / "vitviz" / "part").mkdir(parents=True)
    for path in ("vitviz/a.py", "vitviz/part/b.py", "other.py"):
        (tmp_path / path).write_text(BEFORE)
    drawn = places.draw(tmp_path, 100, 0)
    assert {place.file for place in drawn} == {"vitviz/a.py", "vitviz/part/b.py"}
    assert places.draw(tmp_path, 4, 0) == drawn[:4]
    for part in ("vitviz/part", "vitviz/part/b.py"):
        assert {place.file for place in places.draw(tmp_path, 100, 0, [Path(part)])} == {"vitviz/part/b.py"}


# The map.


@pytest.fixture
def mapped(tmp_path: Path) -> reach.Reach:
    """A map of one module, whose line 4 two tests ran, and a third by a fixture."""
    (tmp_path / "vitviz").mkdir()
    (tmp_path / "vitviz" / "module.py").write_text(AFTER)
    data = CoverageData(str(tmp_path / "coverage"))
    for name, lines in {"": [3, 6, 8, 12], "a.py::one": [4], "b.py::two": [4, 9], "fixture made": [4]}.items():
        data.set_context(context_of(name) if name else "")
        data.add_lines({str(tmp_path / "vitviz" / "module.py"): lines})
    rows: list[dict[str, Any]] = [
        {"test": "a.py::one", "seconds": 0.1, "fixtures": [], "failed": False},
        {"test": "b.py::two", "seconds": 0.1, "fixtures": [], "failed": False},
        {"test": "b.py::three", "seconds": 0.1, "fixtures": ["fixture made"], "failed": False},
        {"test": "b.py::four", "seconds": 0.1, "fixtures": ["fixture made"], "failed": True},
        {"fixture": "fixture made", "seconds": 8.0},
    ]
    (tmp_path / "tests.json").write_text(json.dumps(reach.summary(rows)))
    return reach.Reach(tmp_path, tmp_path)


def place_of(text: str, kind: str, name: str, file: str = "vitviz/module.py") -> Place:
    return next(place for place in places.places(file, text.encode()) if (place.kind, place.name) == (kind, name))


def test_the_map_names_the_tests_of_a_line_and_of_its_shared_fixtures(mapped: reach.Reach) -> None:
    assert mapped.tests(place_of(AFTER, "not", "new")) == ["a.py::one", "b.py::two", "b.py::three"]
    assert mapped.tests(place_of(AFTER, "compare", "first")) == ["b.py::two"]
    assert mapped.seconds["b.py::three"] == pytest.approx(8.1)


def test_a_line_of_the_import_has_the_tests_of_the_module(mapped: reach.Reach) -> None:
    every = ["a.py::one", "b.py::two", "b.py::three"]
    assert mapped.tests(place_of(AFTER, "number", "")) == every
    (mapped.root / "vitviz" / "constants.py").write_text("LIMIT = 3")
    assert mapped.tests(place_of("LIMIT = 3", "number", "", "vitviz/constants.py")) == every
    # So has one that no test is known to run.
    assert mapped.tests(place_of(AFTER, "call", "last")) == every


# The runs.

LONG_SECONDS = 600.0

MODULE = """
def total(values):
    spare = 5
    found = rounds = 0
    for value in values:
        found += value
    while True:
        rounds += 1
        if rounds == 99:
            __import__("pathlib").Path(__file__).with_name("endless").touch()
        if found > 0:
            break
    return found
"""
TESTS = """
from vitviz.module import total
def test_fails_anyway(): assert total([1]) == 8
def test_total(): assert total([1, 2]) == 3
"""


@pytest.mark.long
@pytest.mark.process
@pytest.mark.slow
def test_tests_notice_a_change_by_failing_or_by_hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, names = tmp_path / "root", [f"tests/test_total.py::{name}" for name in ("test_fails_anyway", "test_total")]
    shutil.copytree(MUTATE, root / "tests" / "mutate")
    (root / "vitviz").mkdir()
    files = {
        "vitviz/module.py": MODULE,
        "tests/test_total.py": TESTS,
        "vitviz/__init__.py": "",
        "tests/__init__.py": "",
    }
    for file, text in {**files, "pytest.ini": "[pytest]"}.items():
        (root / file).write_text(text)

    class Named(reach.Reach):
        def __init__(self) -> None:
            self.seconds = dict.fromkeys(names, 0.01)

        def tests(self, place: Place) -> list[str]:
            return names

    endless = tmp_path / "0" / "tree" / "vitviz" / "endless"

    def now() -> float:
        """Time passes once the loop has no end."""
        return time.time() + 2 * runs.HANG_SECONDS * endless.exists()

    monkeypatch.setattr(runs, "HANG_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(runs, "time", SimpleNamespace(time=now, monotonic=time.monotonic))
    trees = runs.Trees(root, tmp_path, Named(), 1)
    found = places.places("vitviz/module.py", MODULE.encode())
    verdicts = {}
    for kind in ("return", "number", "jump"):
        verdicts[kind] = trees.verdict(next(place for place in found if place.kind == kind))
        assert (tmp_path / "0" / "tree" / "vitviz" / "module.py").read_text() == MODULE
    assert {kind: row["how"] for kind, row in verdicts.items()} == {
        "return": f"fails: {names[1]}",
        "number": "passes",
        "jump": f"hangs: {names[0]}",
    }
    assert [row["noticed"] for row in verdicts.values()] == [True, False, True]
    assert [row["dropped"] for row in verdicts.values()] == [names[:1], names[:1], []]

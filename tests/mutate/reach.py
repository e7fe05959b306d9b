"""The map: for each line the tests that ran it, and what each test takes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from coverage import Coverage, CoverageData

from tests.mutate.hooks import MAP
from tests.mutate.places import Place, function_lines
from tests.mutate.processes import context_of

MAX_TESTS = 40
SETTINGS = """[run]
source = {root}/vitviz
data_file = {folder}/data/coverage
core = ctrace
parallel = true
sigterm = true
patch = subprocess, _exit, fork
plugins = tests.mutate.processes
disable_warnings = no-data-collected, module-not-imported, module-not-measured, already-imported
"""


def make(root: Path, folder: Path) -> int:
    """Run the suite under coverage; returns the exit status of pytest.

    Args:
        root: of the repository.
        folder: the folder of the map, made anew.
    """
    shutil.rmtree(folder / "data", ignore_errors=True)
    (folder / "data").mkdir(parents=True)
    for path in (*folder.glob("tests-*.jsonl"), *folder.glob("running-*")):
        path.unlink()
    settings = folder / "coverage.ini"
    settings.write_text(SETTINGS.format(root=root, folder=folder))
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest"]
    command += ["-p", "tests.mutate.hooks", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(root), MAP: str(folder)}
    status = subprocess.run(command, cwd=root, env=environment).returncode
    whole = Coverage(data_file=str(folder / "coverage"), config_file=False)
    whole.combine([str(folder / "data")])
    rows = [json.loads(line) for path in folder.glob("tests-*.jsonl") for line in path.read_text().splitlines()]
    (folder / "tests.json").write_text(json.dumps(summary(rows)))
    return status


def summary(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The tests that passed, with seconds and fixtures; the seconds of fixtures; and the tests that failed."""
    tests: dict[str, Any] = {}
    fixtures: dict[str, float] = {}
    failed = []
    for row in rows:
        if "fixture" in row:
            fixtures[row["fixture"]] = max(row["seconds"], fixtures.get(row["fixture"], 0.0))
        elif row["failed"]:
            failed.append(row["test"])
        else:
            tests[row["test"]] = {"seconds": row["seconds"], "fixtures": row["fixtures"]}
    return {"tests": dict(sorted(tests.items())), "fixtures": fixtures, "failed": sorted(failed)}


class Reach:
    """Tells from a map which tests are to notice a change.

    Args:
        folder: of the map.
        root: of the repository.
        most: how many tests of a place, unless more files have one.
    """

    def __init__(self, folder: Path, root: Path, most: int = MAX_TESTS) -> None:
        self.root, self.most = root, most
        self._data = CoverageData(str(folder / "coverage"))
        self._data.read()
        found = json.loads((folder / "tests.json").read_text())
        self.seconds: dict[str, float] = {}
        self._tests: dict[str, set[str]] = {}
        for test, facts in found["tests"].items():
            shared = sum(found["fixtures"].get(name, 0.0) for name in facts["fixtures"])
            self.seconds[test] = facts["seconds"] + shared
            for name in (test, *facts["fixtures"]):
                self._tests.setdefault(context_of(name), set()).add(test)
        self._lines = cache(self._read_lines)

    def tests(self, place: Place) -> list[str]:
        """The tests to run for a place, in their order."""
        return choose(self._reaching(place), self.seconds, self.most)

    def _reaching(self, place: Place) -> set[str]:
        if place.in_function:
            lines = self._lines(place.file)
            first, last = place.statement
            for numbers in ([place.line], range(first, last + 1)):
                found = [lines[number] for number in numbers if number in lines]
                if tests := set().union(*found):
                    return tests
        near = self.root / place.file
        for paths in ([near], sorted(near.parent.glob("*.py"))):
            if tests := set().union(*map(self._of_functions, paths)):
                return tests
        return set()

    def _of_functions(self, path: Path) -> set[str]:
        lines = self._lines(path.relative_to(self.root).as_posix())
        return set().union(*(lines.get(number, ()) for number in function_lines(path.read_bytes())))

    def _read_lines(self, file: str) -> dict[int, set[str]]:
        """The tests of each line of a file that ran."""
        lines: dict[int, set[str]] = {}
        for measured in self._data.measured_files():
            if measured.endswith(f"/{file}"):
                for line, contexts in self._data.contexts_by_lineno(measured).items():
                    names = {name for context in contexts for name in context.split("|")}
                    lines[line] = set().union(*(self._tests.get(name, ()) for name in names))
        return lines


def choose(tests: Iterable[str], seconds: dict[str, float], most: int) -> list[str]:
    """The cheapest test of each file, and the cheapest of all until there are ``most``; cheapest first."""
    ranked = sorted(tests, key=lambda test: (seconds[test], test))
    firsts = {test.partition("::")[0]: test for test in reversed(ranked)}
    chosen = dict.fromkeys(sorted(firsts.values(), key=ranked.index))
    for test in ranked:
        if len(chosen) >= most:
            break
        chosen[test] = None
    return sorted(chosen, key=lambda test: (bucket(seconds[test]), test.partition("::")[0], seconds[test], test))


def bucket(seconds: float) -> int:
    """The power of four of a cost, so that the tests of a file that cost about the same stay together."""
    return max(0, round(seconds * 20).bit_length() + 1) // 2

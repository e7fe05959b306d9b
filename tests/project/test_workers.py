"""Tests in several processes: each runs once, and a process that dies costs the test that it ran and no other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.example import ROOT

CONTENT = """
import os
import pytest

@pytest.fixture(scope="module")
def opened():
    yield
    write("closed")

def write(text):
    with open("log", "a") as log:
        log.write(f"{text} {os.getpid()}\\n")

@pytest.mark.parametrize("number", range(4))
def test_of_NAME(number, opened):
    write(f"NAME{number}")
    if f"NAME{number}" == "first1":
        os._exit(9)
    assert number != 2, "two"
"""


@pytest.mark.process
def test_every_test_runs_once_and_what_fails_or_dies_is_reported(tmp_path: Path) -> None:
    names = ("first", "second", "third")
    for name in names:
        (tmp_path / f"test_{name}.py").write_text(CONTENT.replace("NAME", name))
    command = [sys.executable, "-m", "pytest", "-p", "tests.workers", "--workers", "2", "-p", "no:cacheprovider", "-q"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert Counter(text for text, _ in lines if text != "closed") == {
        f"{name}{number}": 1 for name in names for number in range(4)
    }
    # Two, and the one in place of the one that died; what it had open nobody closes.
    assert len({process for _, process in lines}) == 3
    assert sum(text == "closed" for text, _ in lines) == 3
    assert set(re.findall(r"FAILED (\S+) - (.*)", done.stdout)) == {
        ("test_first.py::test_of_first[1]", "its process ended: 9"),
        *((f"test_{name}.py::test_of_{name}[2]", "AssertionError: two") for name in names),
    }
    assert "4 failed, 8 passed" in done.stdout

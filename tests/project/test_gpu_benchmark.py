"""The questions to a graphics card stay ready: all of them are asked on a processor, with tiny shapes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.card import MET, MISSED, Card, held_to
from benchmarks.gpu.right import DIFFERENCES
from tests.support.example import ROOT
from vitviz import METHODS


@pytest.mark.long
@pytest.mark.process
@pytest.mark.slow
def test_everything_is_asked_and_answered(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        [ROOT / "benchmarks" / "gpu.sh", "--small", "--output", tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tables = command.tables_of(tmp_path / "gpu.jsonl")
    assert command.FAILURES not in tables
    assert len(tables[DIFFERENCES]) == 6
    text = (tmp_path / "gpu.md").read_text()
    for name in ("relevance", "legrad", "integrated_gradients", "occlusion"):
        assert METHODS[name].title in text
    assert {"Tests", "Training, pictures a second", "A folder of photographs, pictures a second"} < tables.keys()
    assert all(f"## {table}\n" in text for table in tables) and "- versions: torch " in text


@pytest.mark.slow
def test_a_part_that_fails_or_takes_too_long_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(card: Card) -> None:
        card.add("A table", "before", {"value": 1.0})
        raise ValueError("no such thing")

    def hang(card: Card) -> None:
        card.add("A table", "first", {"value": "text"})
        while True:
            pass

    parts = {
        "fails": (fail, 60.0),
        "hangs": (hang, 1.0),
        "works": (lambda card: (card.add("B", "row", {"x": "1"}), card.add("B", "other", {"y": 1.5})), 60.0),
    }
    monkeypatch.setattr(command, "PARTS", parts)
    card = Card(tmp_path, small=True)
    for name in parts:
        command.run_part(card, name, 60.0)
    tables = command.tables_of(card.results)
    assert {name: list(rows) for name, rows in tables.items()} == {
        "A table": ["before", "first"],
        command.FAILURES: ["fails", "hangs"],
        "B": ["row", "other"],
    }
    assert "no such thing" in (tmp_path / "fails.log").read_text()
    assert "| row | 1 | – |\n| other | – | 1.50 |" in command.page(tables, {})


def test_a_mark_says_whether_a_limit_is_kept() -> None:
    assert held_to(1.2, 1.2) == f"1.20 {MET}" and held_to(1.21, 1.2) == f"1.21 {MISSED}"
    assert held_to(0.9, 0.9, is_most=False) == f"0.900 {MET}" and held_to(0.5, 0.9, is_most=False) == f"0.500 {MISSED}"

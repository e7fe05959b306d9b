"""Checkpoints of other families: inspected, shown and evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.checkpoints import timm_state
from tests.support.commands import DINO, TIMM, Capture, as_options, write_dino, write_timm
from tests.support.package_checkpoints import write
from tests.support.reading import read_any as read
from vitviz.cli.command import main
from vitviz.weights import BUNDLED
from vitviz.weights.checkpoint_sources import read_source
from vitviz.weights.overrides import Stated

# Checkpoints of others.


@pytest.mark.parity
def test_inspect_says_everything_and_how_it_is_known(checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    others = [str(write("transformers", tmp_path)), str(write_timm(tmp_path)), str(write_dino(tmp_path))]
    for source in (BUNDLED[0], str(checkpoint), *others):
        overrides = TIMM if "timm" in source else DINO if "dino" in source else {}
        assert main(["inspect", source, *as_options(overrides)]) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        reading = read(source, **overrides)
        check_table(shown.out, reading)
        assert ("no sharper than 56×56" in str(reading.checks)) is (source == BUNDLED[0])


def check_table(shown: str, reading: Any) -> None:
    """Each line begins every column where the others do; put together again, the cells are the checks."""
    lines = shown.splitlines()
    assert all(len(line) <= 100 and line == line.rstrip() for line in lines)
    assert lines[0] == f"{reading.model.name}: {reading.model.parameters:,} parameters"
    if reading.model.assumptions:
        assert lines.pop() == "No file states what is assumed; an option of its name corrects it."
    assert "has its place, and the right shape." in lines[-1]
    header, *table = lines[2:-2]
    columns = [header.index(title) for title in ("fact", "value", "how it is known")]
    assert columns[0] == 0
    rows: list[list[str]] = []
    for line in table:
        ends = [*columns[1:], len(line)]
        cells = [line[start:end] for start, end in zip(columns, ends, strict=True)]
        assert all(cell == "" or cell[0] != " " for cell in cells if cell.strip()), line
        if cells[0].strip():
            rows.append([cell.strip() for cell in cells])
        else:
            rows[-1] = [f"{before} {cell.strip()}".strip() for before, cell in zip(rows[-1], cells, strict=True)]
    expected = [
        [
            check.fact,
            check.value,
            ("assumed: " * check.assumed + check.source).replace("normalisation=", "--normalisation "),
        ]
        for check in reading.checks
    ]
    assert rows[: len(expected)] == expected
    assert {row[2] for row in rows[len(expected) :]} == set(reading.ignored.values())


def test_keys_that_are_not_needed_are_told_by_their_reason(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "mae.pth"
    state = timm_state(width=48) | {f"decoder_blocks.{number}.weight": torch.zeros(2) for number in range(60)}
    torch.save(state, path)
    assert main(["inspect", str(path), *as_options(TIMM)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("decoder_blocks") == 2
    assert "and 58 more" in " ".join(shown.split())
    assert shown.count("not needed") == 1
    assert "Every other tensor of the file" in shown


def test_facts_and_family_reach_the_reader(
    photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    path = write_timm(tmp_path, positions=1 + 3 * 6)
    assert main(["inspect", str(path), *as_options(TIMM)]) == 2, "18 patches are no square"
    assert "pass --image-size heightxwidth" in capsys.readouterr().err
    assert main(["inspect", str(path), *as_options(TIMM), "--image-size", "24x48", "--family", "timm"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "heads 4 stated by the user" in shown
    assert "grid 3×6 patches" in shown
    given = []

    def spy(source: str, stated: Stated, **options: Any) -> object:
        given.append((source, stated))
        return read_source(source, stated, **options)

    monkeypatch.setattr("vitviz.cli.checkpoints.read_source", spy)
    typed = ["--family", "timm", *as_options(TIMM), "--image-size", "24x48", "--norm-epsilon", "1e-5"]
    typed += ["--pooling", "mean", "--heads", "2"]
    assert main(["inspect", str(path), *typed]) == 0
    assert main(["attention", str(photo), "--checkpoint", str(path), *typed]) == 0
    told = {"family": "timm", **TIMM, "heads": 2, "image_size": (24, 48), "norm_epsilon": 1e-5, "pooling": "mean"}
    assert given == [(str(path), Stated.of(**told))] * 2

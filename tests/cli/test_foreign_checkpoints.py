"""Checkpoints of other families: inspected, shown and evaluated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.commands import (
    DINO,
    TIMM,
    Capture,
    as_options,
    same_pixels,
    summary,
    timm_state,
    write_dino,
    write_timm,
    write_transformers,
)
from tests.support.reading import read_any as read
from vitviz import analyze, load
from vitviz.cli.command import main
from vitviz.training.data import read_image_folder
from vitviz.training.evaluate import evaluate
from vitviz.weights import BUNDLED
from vitviz.weights.overrides import Stated
from vitviz.weights.sources import read_source

# Checkpoints of others.

WRITERS: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "timm": (write_timm, TIMM),
    "DINO": (write_dino, DINO),
    "transformers": (write_transformers, {}),
}
FOREIGN = pytest.mark.parametrize(("write", "overrides"), WRITERS.values(), ids=WRITERS)


@pytest.mark.slow
@FOREIGN
def test_inspect_says_everything_and_how_it_is_known(
    write: Callable[[Path], Path], overrides: dict[str, Any], tmp_path: Path, capsys: Capture
) -> None:
    path = write(tmp_path)
    assert main(["inspect", str(path), *as_options(overrides)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    check_table(shown.out, read(path, **overrides))


@pytest.mark.slow
def test_inspect_reads_vitvizs_own_format_too(checkpoint: Path, capsys: Capture) -> None:
    for source, said in ((str(checkpoint), "squash, bicubic by"), (BUNDLED[0], "no sharper than 56×56")):
        assert main(["inspect", source]) == 0
        check_table(capsys.readouterr().out, read(source))
        [preprocessing] = [check.value for check in read(source).checks if check.fact == "preprocessing"]
        assert said in preprocessing and ("sharper" in preprocessing) is (source == BUNDLED[0])


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
        if check.fact != "not needed"
    ]
    assert rows[: len(expected)] == expected
    assert {row[2] for row in rows[len(expected) :]} == set(reading.ignored.values())


def test_keys_that_are_not_needed_are_told_by_their_reason(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "mae.pth"
    state = timm_state() | {f"decoder_blocks.{number}.weight": torch.zeros(2) for number in range(60)}
    torch.save(state, path)
    assert main(["inspect", str(path), *as_options(TIMM)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("decoder_blocks") == 2
    assert "and 58 more" in " ".join(shown.split())
    assert shown.count("not needed") == 1
    assert "Every other tensor of the file" in shown


def test_facts_and_family_reach_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    path = write_timm(tmp_path, size=(24, 48))
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
    assert main(["inspect", str(path), *typed, "--pooling", "mean", "--heads", "2"]) == 0
    told = {"family": "timm", **TIMM, "heads": 2, "image_size": (24, 48), "norm_epsilon": 1e-5, "pooling": "mean"}
    assert given == [(str(path), Stated.of(**told))]


@FOREIGN
def test_a_method_runs_on_a_checkpoint_of_others(
    write: Callable[[Path], Path], overrides: dict[str, Any], photo: Path, tmp_path: Path, capsys: Capture
) -> None:
    path, output = write(tmp_path), photo.with_name("map.png")
    arguments = [
        "attention",
        str(photo),
        "--checkpoint",
        str(path),
        *as_options(overrides),
        "-o",
        str(output),
        "--query",
        "1,2",
    ]
    assert main(arguments) == 0
    heatmap = analyze(photo, load(path, **overrides)).attention(query=(1, 2))
    assert same_pixels(output, heatmap.overlay(mark=(1, 2)))
    assert capsys.readouterr().out == f"{heatmap.description}\nwritten to {output}\n"


@pytest.mark.slow
def test_a_checkpoint_of_others_is_evaluated(colours: Path, tmp_path: Path, capsys: Capture) -> None:
    path = write_transformers(tmp_path)
    model = load(path)
    assert model.labels == ("blue", "red")
    assert main(["evaluate", str(colours), "--checkpoint", str(path)]) == 0
    expected = evaluate(
        model.network, model.preprocessing, read_image_folder(colours, "test", model.preprocessing, 8, 8)
    )
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == summary(expected)
    assert main(["evaluate", str(colours), "--checkpoint", str(write_timm(tmp_path)), *as_options(TIMM)]) == 2
    captured = capsys.readouterr().err.splitlines()[-1]
    assert "images: unknown classes blue, red; timm knows class 0, class 1" in captured

"""Measures of heads, against the attention weights themselves and for attention with known results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.makers import MakeModel
from vitviz import DataError, save_checkpoint
from vitviz.cli.command import main
from vitviz.evaluation.head_picture import heads_picture
from vitviz.evaluation.head_table import MEASURES, head_tables, measure_heads_over
from vitviz.evaluation.method_table import find_images

pytestmark = pytest.mark.slow


def test_the_command_prints_tables_and_writes_the_figure(
    make_model: MakeModel, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, checkpoint, output = make_model(classes=0), tmp_path / "small.safetensors", tmp_path / "heads.json"
    save_checkpoint(checkpoint, model)
    command = ["describe-heads", str(folder), "--checkpoint", str(checkpoint), "--count", "3", "--resolution", "24"]
    for picture in (tmp_path / "heads.svg", tmp_path / "heads.pdf"):
        assert main([*command, "-o", str(output), "--picture", str(picture)]) == 0
        assert picture.stat().st_size > 1000
        output_text = capsys.readouterr().out
    found = measure_heads_over(model, find_images(folder, 3), resolution=24)
    assert output_text == head_tables(found) + "\n"
    for measure in MEASURES.values():
        assert f"**{measure.title}**" in output_text
    assert output_text.count("| layer | head 0 | head 1 | head 2 | head 3 |") == 3
    saved = json.loads(output.read_text())
    for name, values in found.items():
        torch.testing.assert_close(torch.tensor(saved["heads"][name]), values)
    assert main([*command, "--picture", str(tmp_path / "heads.nothing")]) == 2
    assert "heads.nothing: cannot be written" in capsys.readouterr().err


def test_the_figure_has_a_dot_for_each_head(make_model: MakeModel, folder: Path) -> None:
    reports: list[int] = []
    found = measure_heads_over(make_model(), find_images(folder, 2), reports.append)
    assert reports == [1, 2]
    with pytest.raises(DataError, match="images: none found"):
        measure_heads_over(make_model(), [])
    axes = heads_picture({"entropy": torch.rand(1, 24, 2)}).axes
    assert axes[0].get_xticks().tolist() == [*range(0, 24, 2)]
    axes = heads_picture(found).axes
    assert [each.get_title() for each in axes] == [measure.title for measure in MEASURES.values()]
    for each, values in zip(axes, found.values(), strict=True):
        bounds = np.concatenate([bar.lines[0].get_ydata() for bar in each.containers])
        np.testing.assert_allclose(sorted(bounds), sorted(values.mean(0).flatten()), rtol=1e-6)
        heights = [np.ptp(line[:, 1]) for bar in each.containers for line in bar.lines[2][0].get_segments()]
        np.testing.assert_allclose(sorted(heights), sorted(2 * values.std(0, correction=0).flatten()), rtol=1e-4)

"""The commands of features write what the library computes."""

from __future__ import annotations

import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image

from tests.support.example import ASSETS
from tests.support.makers import MakeModel
from vitviz import BatchRequest, MethodError, Model, analyze, components
from vitviz.cli.command import main
from vitviz.datasets import FeatureRequest, run_batch
from vitviz.visualization import Style, figure

pytestmark = pytest.mark.slow


def test_components_are_drawn_side_by_side(bundled: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = [str(ASSETS / f"{name}.jpg") for name in ("chelsea", "perch")]
    output = tmp_path / "out.png"
    options = ["--layer", "3", "--of", "keys", "--foreground", "--opacity", "0.7", "--squares"]
    assert main(["components", *pictures, "-o", str(output), *options]) == 0
    maps = components([analyze(each, bundled) for each in pictures], 3, of="keys", foreground=True)
    with Image.open(output) as drawn:
        np.testing.assert_array_equal(np.asarray(drawn), np.asarray(maps.overlay(0.7, False)))
    assert capsys.readouterr().out == f"{maps.description}\nwritten to {output}\n"
    assert main(["components", pictures[0], "-o", str(tmp_path / "none" / "out.png")]) == 2
    assert "no folder" in capsys.readouterr().err


def test_likeness_to_a_token_is_a_figure_of_all_pictures(
    bundled: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures, output = [str(ASSETS / f"{name}.jpg") for name in ("chelsea", "perch")], tmp_path / "out.png"
    options = ["--layer", "3", "--query", "5,6", "--squares", "--fit", "crop"]
    assert main(["components", *pictures, "-o", str(output), *options]) == 0
    first, second = (analyze(each, bundled, fit="crop") for each in pictures)
    maps = [first.similarity((5, 6), layer=3), first.similarity((5, 6), second, 3)]
    style = Style(opacity=1.0, fade=True, drain=True)
    expected = figure(maps, style, marks=[(5, 6), maps[1].token_map.strongest])
    with Image.open(output) as drawn, Image.open(BytesIO(expected.png())) as shown:
        np.testing.assert_array_equal(np.asarray(drawn), np.asarray(shown.convert("RGB")))
    hidden = "dim parts of pictures are outside of the model's input; --fit native has all of them in it"
    assert capsys.readouterr().out == f"{hidden}\n{maps[1].description}\nwritten to {output}\n"
    for words in ([*pictures, "--foreground", "--query", "cls", "-q"], ["clip.mp4", "--value-range", "0", "1"]):
        assert main(["components", *words]) == 2
        assert f"{words[-3]}: expected images" in capsys.readouterr().err


def test_features_of_a_folder_are_rows_in_half_precision(
    bundled: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos").mkdir()
    for name in ("coffee", "perch"):
        shutil.copy(ASSETS / f"{name}.jpg", tmp_path / "photos")
    words = ["features", str(tmp_path / "photos"), "--layer", "3"]
    assert main([*words, "-o", str(tmp_path / "features.parquet")]) == 0
    assert main([*words, "-o", str(tmp_path / "means"), "--of", "keys", "--mean"]) == 0
    for folder, of in (("features.parquet", "tokens"), ("means", "keys")):
        table = parquet.read_table(tmp_path / folder)
        assert str(table.schema.field("features").type) == "list<element: halffloat>"
        assert table.schema.field("features").metadata[b"layer"] == b"3"
        for row in table.to_pylist():
            found = analyze(tmp_path / "photos" / row["path"], bundled).features(3, of)
            expected = found.tokens[found.inliers].mean(0) if folder == "means" else found.values
            values = np.array(row["features"], np.float64).reshape(row["features.shape"])
            np.testing.assert_allclose(values, expected.numpy(), rtol=2e-3, atol=2e-2)
    # The same command goes on with what is missing; another request is refused.
    shutil.copy(ASSETS / "flower.jpg", tmp_path / "photos")
    capsys.readouterr()
    assert main([*words, "-o", str(tmp_path / "means"), "--of", "keys", "--mean"]) == 0
    assert capsys.readouterr().out.startswith("1 picture analysed") and len(parquet.read_table(tmp_path / "means")) == 3
    assert main([*words, "-o", str(tmp_path / "means"), "--of", "values", "--mean"]) == 2
    assert "holds the results of another request, with other 'features'" in capsys.readouterr().err


def test_vectors_beyond_half_precision_are_refused(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model()
    with torch.no_grad():
        model.network.encoder[1].mlp[2].bias[3] = 70_000
    with pytest.raises(MethodError, match="beyond 65,504, which half precision ends at"):
        run_batch(BatchRequest(model, features=FeatureRequest(1)), [ASSETS / "perch.jpg"], tmp_path / "out")
    assert run_batch(BatchRequest(model, features=FeatureRequest(0)), [ASSETS / "perch.jpg"], tmp_path / "out").analysed

"""The true class of a picture is that of its folder, where it names one, and never a guess."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tests.datasets.batches import rows
from tests.support.pictures import write_photos
from vitviz import DataError, Model
from vitviz.cli.batching import _print
from vitviz.datasets import BatchRequest, MapRequest, read_atlas, read_items, run_batch
from vitviz.datasets.true_classes import class_names, true_class

LABELS = (
    "tench, Tinca tinca", "great white shark, white shark", "crane", "crane, bird", "ice-cream", "ball", "ball",
    "Polish", "polish", "épée",
)  # fmt: skip


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("test/tench/1.jpg", LABELS[0]),
        ("Tinca_tinca/1.jpg", LABELS[0]),
        ("White Shark/1.jpg", LABELS[1]),
        ("Ice cream/1.jpg", LABELS[4]),
        # Rows of tables, with the file and row before the path.
        ("T.PARQUET#0 tench/1.jpg", LABELS[0]),
        ("part/t.parquet#12 train/white shark/1.jpg", LABELS[1]),
        ("t.parquet#0 train\\tench\\1.jpg", LABELS[0]),
        ("t.parquet#0 tench.jpg", None),
        # Case alone tells two classes apart; a letter may be composed in two ways.
        ("Polish/1.jpg", LABELS[7]),
        ("polish/1.jpg", LABELS[8]),
        ("POLISH/1.jpg", None),
        (f"{normalize('NFD', 'Épée')}/1.jpg", LABELS[9]),
        # One name for two classes, part of a name, a folder further up, and none.
        ("crane/1.jpg", None),
        ("ball/1.jpg", None),
        ("shark/1.jpg", None),
        ("tench/photos/1.jpg", None),
        ("tench.jpg", None),
    ],
)
def test_a_folder_names_a_class_or_none(key: str, expected: str | None) -> None:
    assert true_class(key, class_names(LABELS)) == expected


def test_the_class_of_a_table_counts_before_that_of_a_folder() -> None:
    names = class_names(LABELS)
    assert true_class("tench/1.jpg", names, "Ice cream") == LABELS[4]
    assert true_class("tench/1.jpg", names, "n02119789") == LABELS[0]
    assert true_class("1.jpg", names, "n02119789") is None


def test_a_batch_has_the_classes_of_a_table_and_says_what_is_left_out(
    make_model: Callable[..., Model], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = write_photos(tmp_path / "photos", ["a.png", "class 2/b.png"], [(24, 16)])
    cells = [b"damaged", *[(photos / "a.png").read_bytes()] * 3]
    table = pyarrow.table({"image": cells, "label": ["class 1", "dog", "dog", None]})
    pyarrow.parquet.write_table(table, photos / "more.parquet")
    (photos / "notes.txt").write_text("no picture")
    (photos / ".c.png").touch()
    summary = run_batch(BatchRequest(make_model()), photos, tmp_path / "out")
    truth = {path: row["true_class"] for path, row in rows(tmp_path / "out").items()}
    labels = dict(zip((f"more.parquet#{number}" for number in range(4)), ("class 1", None, None, None), strict=True))
    assert truth == {"a.png": None, "class 2/b.png": "class 2", **labels}
    assert (summary.labelled, summary.other_folders) == (2, {"dog": 2})
    assert summary.left_out == "2 files left out: .c.png (hidden); notes.txt (not a picture)"
    _print(summary, tmp_path / "out")
    assert f"no class of the model: 'dog' (2)\n{summary.left_out}\n" in capsys.readouterr().out
    again = run_batch(BatchRequest(make_model()), [photos / "a.png"], tmp_path / "list")
    assert (again.analysed, again.left_out) == (1, "")


def test_the_table_the_command_and_the_atlas_know_the_misclassified(
    make_model: Callable[..., Model], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, folders = make_model(), ("class_0", "class 1", "class-2", "class 3", "others")
    names = [f"{folders[number % 5]}/{number}.png" for number in range(10)]
    photos = write_photos(tmp_path / "photos", names, [(24, 16)])
    request = BatchRequest(model, (MapRequest("rollout"),))
    summary = run_batch(request, read_items(str(photos)), tmp_path / "out")
    found = rows(tmp_path / "out")
    for path, row in found.items():
        truth = None if path.startswith("others/") else f"class {path[6]}"
        best = row["predictions"][0]["label"]
        assert row["true_class"] == truth and row["is_misclassified"] == (None if truth is None else best != truth)
    assert (summary.labelled, summary.other_folders) == (8, {"others": 2})
    _print(summary, tmp_path / "out")
    expected = "true classes: of 8 pictures; folders or classes of tables that name no class of the model: 'others' (2)"
    assert expected in capsys.readouterr().out
    wrong = [row["rollout"] for row in found.values() if row["is_misclassified"]]
    assert 0 < len(wrong) < 10
    atlas = read_atlas(tmp_path / "out", misclassified=True)
    assert atlas.pictures == len(wrong)
    np.testing.assert_allclose(atlas.maps["rollout"].values.ravel(), np.mean(wrong, 0), rtol=1e-6)
    for folder in photos.iterdir():
        folder.rename(photos / f"x{folder.name}")
    run_batch(request, read_items(str(photos)), tmp_path / "unlabelled")
    with pytest.raises(DataError, match="no picture is misclassified; 0 of 10 pictures lie in a folder with the name"):
        read_atlas(tmp_path / "unlabelled", misclassified=True)

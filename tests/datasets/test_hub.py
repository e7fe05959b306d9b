"""Data sets of the package ``datasets``, here local ones: the same pictures as from any other source."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from vitviz import ConfigError, DataError, Model, open_image
from vitviz.datasets import BatchRequest, read_items, reader_of, run_batch

pytestmark = pytest.mark.parity
COUNT = 5


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two splits with pictures of known sizes, a column of numbers beside them."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number in range(COUNT):
        Image.new("RGB", (20 + number, 16), (number, 0, 0)).save(pictures / f"{number}.png")
    paths = [str(pictures / f"{number}.png") for number in range(COUNT)]
    table = datasets.Dataset.from_dict({"image": paths, "label": list(range(COUNT))})
    table = table.cast_column("image", datasets.Image()).cast_column("label", datasets.ClassLabel(names=list("abcde")))
    (tmp_path / "set" / "data").mkdir(parents=True)
    for split, rows in (("train", table), ("test", table.select([0, 1]))):
        rows.to_parquet(str(tmp_path / "set" / "data" / f"{split}-00000-of-00001.parquet"))
    return tmp_path / "set"


def test_a_split_gives_its_pictures_with_keys_of_their_own(folder: Path) -> None:
    source = f"hf:datasets/{folder}:train"
    items = list(read_items(source))
    assert [open_image(item.source).width for item in items] == [20 + number for number in range(COUNT)]
    assert [item.key for item in items] == [f"train#{number} {number}.png" for number in range(COUNT)]
    assert [item.key for item in read_items(source)] == [item.key for item in items]
    assert [item.label for item in items] == list("abcde")
    assert len(list(read_items(f"hf:datasets/{folder}:test"))) == 2
    assert reader_of(source).streams


def test_a_batch_reads_it(folder: Path, make_model: Callable[..., Model], tmp_path: Path) -> None:
    summary = run_batch(BatchRequest(make_model()), read_items(f"hf:datasets/{folder}:train"), tmp_path / "out")
    assert (summary.analysed, summary.failed) == (COUNT, 0)
    rows = parquet.read_table(tmp_path / "out" / "parts").to_pylist()
    np.testing.assert_array_equal([row["width"] for row in rows], [20 + number for number in range(COUNT)])


@pytest.mark.parametrize(
    ("ending", "column", "words"),
    [
        ("", "image", "no split is named; expected hf:datasets/OWNER/NAME:SPLIT"),
        (":valid", "image", r"cannot be read \(.*valid.*train"),
        (":train", "photo", "no column 'photo'; expected --column with one of 'image' or 'label'"),
        (":train", "label", "train#0: int found; expected the bytes or the path of a picture"),
        ("-of-nobody:train", "image", "cannot be read "),
    ],
)
def test_a_wrong_data_set_is_one_sentence(folder: Path, ending: str, column: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as error:
        list(read_items(f"hf:datasets/{folder}{ending}", column))
    assert "\n" not in str(error.value)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, folder: Any) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'datasets>=4'"):
        list(read_items(f"hf:datasets/{folder}:train"))

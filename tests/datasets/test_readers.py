"""Every kind of source gives the same pictures, and what is none of them is one sentence."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from vitviz import DataError, open_image
from vitviz.datasets import Item, read_items
from vitviz.images.kinds import described, picture_files

NAMES = ("a.png", "b b.png", "inside/c.png", "é.png")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for number, name in enumerate(NAMES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8 + number, 5), (number, 0, 0)).save(folder / name)
    (folder / "notes.txt").write_text("no picture")
    (folder / "table.csv").write_text("1,2")
    return folder


def of_folder(photos: Path) -> str:
    return str(photos)


def of_pattern(photos: Path) -> str:
    return str(photos / "**" / "*.png")


def of_list(photos: Path) -> str:
    (photos / "list.txt").write_text("\n".join([*NAMES, "", NAMES[0]]), encoding="utf-8")
    return str(photos / "list.txt")


def of_tar(photos: Path) -> str:
    with tarfile.open(photos.parent / "photos.tar.gz", "w:gz") as archive:
        archive.add(photos, "photos")
    return str(photos.parent / "photos.tar.gz")


def of_parquet(photos: Path) -> str:
    cells = [{"bytes": (photos / name).read_bytes(), "path": name} for name in NAMES]
    pyarrow.parquet.write_table(pa.table({"image": cells, "label": [0, 1, 2, 3]}), photos.parent / "p.parquet")
    return str(photos.parent / "p.parquet")


def of_parquet_of_bytes(photos: Path) -> str:
    folder = photos.parent / "table"
    folder.mkdir(exist_ok=True)
    for part in range(2):
        cells = [(photos / name).read_bytes() for name in NAMES[2 * part : 2 * part + 2]]
        pyarrow.parquet.write_table(pa.table({"image": cells}), folder / f"{part}.parquet")
    return str(folder)


SOURCES = (of_folder, of_pattern, of_list, of_tar, of_parquet, of_parquet_of_bytes)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_every_kind_of_source_gives_every_picture_once(photos: Path, source: Callable[[Path], str]) -> None:
    items = list(read_items(source(photos)))
    assert sorted(open_image(item.source).width for item in items) == [8, 9, 10, 11]
    assert len({item.key for item in items}) == 4
    # In the same order with the same names in every run.
    assert [item.key for item in read_items(source(photos))] == [item.key for item in items]


def of_all(photos: Path) -> str:
    return str(photos / "*")


@pytest.mark.parametrize("source", [of_folder, of_all, of_tar])
def test_the_content_of_a_file_decides_and_other_files_are_counted(photos: Path, source: Callable[[Path], str]) -> None:
    (photos / "no ending").write_bytes((photos / "a.png").read_bytes())
    for name in ("._a.png", ".DS_Store", "Thumbs.db"):
        (photos / name).write_bytes(b"of a file manager")
    items = read_items(source(photos))
    for _ in range(2):
        sources = {Path(item.key).name: item.source for item in items}
        assert {"a.png", "no ending"} < set(sources)
        assert open_image(sources["no ending"]).size == (8, 5)
        assert (items.left_out_count, len(items.left_out_names)) == (2, 2)


@pytest.mark.skipif(os.name != "posix", reason="there are no pipes in folders")
def test_links_to_nothing_and_pipes_are_counted_and_called_so(photos: Path) -> None:
    (photos / "gone.jpg").symlink_to("nowhere.jpg")
    os.mkfifo(photos / "pipe.jpg")
    items = read_items(str(photos))
    assert [item.key for item in items] == sorted(NAMES)
    assert (items.left_out_count, items.left_out_names[0]) == (4, "gone.jpg (a link to nothing)")
    others = picture_files(photos.glob("*.jpg"), photos)[1]
    assert [described(path, path.name) for path in others] == [
        "gone.jpg (a link to nothing)",
        "pipe.jpg (a pipe, a socket or a device)",
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="names are UTF-8")
@pytest.mark.parametrize("source", [of_folder, of_pattern, of_tar])
def test_a_name_that_is_not_utf8_is_a_row_of_utf8(photos: Path, source: Callable[[Path], str]) -> None:
    (photos / "a.png").rename(photos / os.fsdecode(b"caf\xe9.png"))
    for item in read_items(source(photos)):
        item.key.encode()
        assert open_image(item.source).height == 5
    assert any(item.key.endswith("caf%E9.png") for item in read_items(source(photos)))


def test_names_that_lead_out_of_an_archive_are_only_names(photos: Path, tmp_path: Path) -> None:
    content = (photos / NAMES[0]).read_bytes()
    with tarfile.open(tmp_path / "strange.tar", "w") as archive:
        for name in ("../out.png", "/abs.png", "in.png"):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, str(photos / NAMES[1])
        archive.addfile(link)
        huge = tarfile.TarInfo("huge.png")
        archive.addfile(huge)
    before = sorted(tmp_path.rglob("*"))
    found = list(read_items(str(tmp_path / "strange.tar")))
    assert [item.key for item in found] == ["../out.png", "/abs.png", "in.png", "huge.png"]
    assert all(isinstance(item.source, bytes) for item in found) and found[-1] == Item("huge.png", b"")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_wrong_source_is_one_sentence(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.tar").write_bytes(b"no archive" * 100)
    (tmp_path / "broken.parquet").write_bytes(b"no table" * 100)
    (tmp_path / "bytes.txt").write_bytes(os.urandom(100) + b"\xff")
    of_tar(photos)
    whole = (tmp_path / "photos.tar.gz").read_bytes()
    (tmp_path / "half.tar.gz").write_bytes(whole[: len(whole) // 2])
    of_parquet(photos)
    pyarrow.parquet.write_table(pa.table({"image": [1, 2]}), tmp_path / "numbers.parquet")
    for source, column, words in (
        ("absent", "image", f"no such file or folder in {tmp_path}, or of an unknown kind; expected "),
        ("absent.jpg", "image", "no such file or folder"),
        ("empty", "image", "no picture in it; expected a folder with pictures"),
        ("none*.png", "image", "no picture in it; expected a pattern"),
        ("broken.tar", "image", "damaged archive"),
        ("half.tar.gz", "image", "damaged archive"),
        ("broken.parquet", "image", "damaged Parquet file"),
        ("bytes.txt", "image", "cannot be read as a list of paths"),
        ("p.parquet", "photo", "no column 'photo'; expected --column with one of 'image' or 'label'"),
        ("numbers.parquet", "image", "row 0 has int; expected the bytes of a picture"),
    ):
        with pytest.raises(DataError) as error:
            list(read_items(source, column))
        assert source in str(error.value) and words in str(error.value)


def test_an_empty_cell_is_a_picture_that_cannot_be_opened(photos: Path, tmp_path: Path) -> None:
    cells = [None, (photos / NAMES[0]).read_bytes()]
    pyarrow.parquet.write_table(pa.table({"image": pa.array(cells, pa.binary())}), tmp_path / "p.parquet")
    first, second = read_items(str(tmp_path / "p.parquet"))
    assert first == Item("p.parquet#0", b"") and np.asarray(open_image(second.source)).shape == (5, 8, 3)

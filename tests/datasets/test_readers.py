"""Every kind of source gives the same pictures, and what is none of them is one sentence."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import unicodedata
from collections.abc import Callable, Iterator
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
        assert (items.left_out_count, len(items.left_out_names)) == ((2, 2) if source is of_all else (3, 3))
        # A star takes no hidden files.
        assert source is of_all or any(name.endswith("._a.png (hidden)") for name in items.left_out_names)


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
        ("numbers.parquet", "image", "#0: int found; expected the bytes or the path of a picture"),
    ):
        with pytest.raises(DataError) as error:
            list(read_items(source, column))
        assert source in str(error.value) and words in str(error.value)


def test_an_empty_cell_is_a_picture_that_cannot_be_opened(photos: Path, tmp_path: Path) -> None:
    cells = [None, (photos / NAMES[0]).read_bytes()]
    pyarrow.parquet.write_table(pa.table({"image": pa.array(cells, pa.binary())}), tmp_path / "p.parquet")
    first, second = read_items(str(tmp_path / "p.parquet"))
    assert first == Item("p.parquet#0", b"") and np.asarray(open_image(second.source)).shape == (5, 8, 3)


@pytest.mark.skipif(os.name != "posix", reason="links need a privilege")
def test_links_to_folders_are_followed_and_loops_end_and_are_named(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "set" / "all").mkdir(parents=True)
    (tmp_path / "set" / "cat").symlink_to(photos / "inside")
    (tmp_path / "set" / "dog").symlink_to(photos / "inside")
    (tmp_path / "set" / "all" / "one.png").symlink_to(photos / "a.png")
    (tmp_path / "set" / "all" / "loop").symlink_to("..")
    (photos / "inside" / "up").symlink_to(tmp_path)
    expected = ["all/one.png", "cat/c.png", "dog/c.png"]
    items = read_items(tmp_path / "set")
    assert [item.key for item in items] == expected
    assert [open_image(item.source).width for item in items] == [8, 10, 10]
    reason = "(a link to a folder that leads to it)"
    assert items.left_out_names == [f"{name} {reason}" for name in ("all/loop", "cat/up", "dog/up")]
    for pattern in ("set/**/*.png", "set/*"):
        items = read_items(tmp_path / pattern)
        assert sorted(item.key for item in items) == [f"{tmp_path}/set/{name}" for name in expected]
    assert items.left_out_count == 3


def test_a_folder_that_cannot_be_read_is_named(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, entries: Callable[[Path], Iterator[Path]] = Path.iterdir) -> Iterator[Path]:
        if path.name == "inside":
            raise PermissionError
        return entries(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "inside")
    items = read_items(photos)
    assert [item.key for item in items] == ["a.png", "b b.png", "é.png"]
    assert items.left_out_names[0] == "inside (a folder that cannot be read)"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le with mark"])
def test_a_list_may_be_made_on_windows(photos: Path, encoding: str) -> None:
    names = ["a.png", "", "inside\\c.png", "é.png", "b b.png"]
    text = "\ufeff" * ("mark" in encoding) + "\r\n".join([*names, names[0]])
    (photos / "list.txt").write_bytes(text.encode(encoding.removesuffix(" with mark")))
    items = list(read_items(photos / "list.txt"))
    assert [item.key for item in items] == ["a.png", "inside/c.png", "é.png", "b b.png"]
    assert [open_image(item.source).width for item in items] == [8, 10, 11, 9]


@pytest.mark.parametrize(("encoding", "word"), [("utf-16-le", "null characters"), ("cp1252", "codec")])
def test_a_list_of_another_encoding_is_refused_with_what_to_save(photos: Path, encoding: str, word: str) -> None:
    (photos / "list.txt").write_bytes(("é.png\r\n" if encoding == "cp1252" else "a.png").encode(encoding))
    with pytest.raises(DataError, match=f"{word}.*; save it as UTF-8 text"):
        read_items(photos / "list.txt")


@pytest.mark.skipif(os.name != "posix", reason="no name ends in a space")
def test_a_list_names_pictures_as_they_are_on_disk(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decomposed = unicodedata.normalize("NFD", "ü.png")
    for name in (decomposed, "space.png "):
        (photos / name).write_bytes((photos / "a.png").read_bytes())
    monkeypatch.setenv("HOME", str(photos))
    (tmp_path / "list.txt").write_text("~/ü.png\nphotos/space.png \n  photos/a.png \nphotos/gone.png\n", "utf-8")
    items = {item.key: item.source for item in read_items(tmp_path / "list.txt")}
    assert items == {
        "~/ü.png": photos / decomposed,
        "photos/space.png ": photos / "space.png ",
        "photos/a.png": photos / "a.png",
        "photos/gone.png": photos / "gone.png",
    }


def test_a_table_beside_pictures_adds_its_own(photos: Path) -> None:
    content = (photos / "a.png").read_bytes()
    cells = [
        {"bytes": None, "path": "a.png"},
        {"bytes": content, "path": "dog/1.png"},
        {"bytes": content, "path": None},
    ]
    pyarrow.parquet.write_table(pa.table({"image": cells}), photos / "metadata.parquet")
    pyarrow.parquet.write_table(pa.table({"file_name": ["a.png"]}), photos / "other.parquet")
    items = read_items(photos)
    assert [item.key for item in items] == [*sorted(NAMES), "metadata.parquet#1 dog/1.png", "metadata.parquet#2"]
    assert "other.parquet (a table without a column 'image')" in items.left_out_names


def test_a_table_may_hold_paths(photos: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"image": ["inside/c.png", "é.png"]}), photos / "table.parquet")
    items = list(read_items(photos / "table.parquet"))
    assert [item.key for item in items] == ["table.parquet#0 inside/c.png", "table.parquet#1 é.png"]
    assert [open_image(item.source).width for item in items] == [10, 11]


def test_links_and_replaced_members_of_an_archive_are_as_tar_unpacks_them(photos: Path, tmp_path: Path) -> None:
    contents = [(photos / name).read_bytes() for name in NAMES]
    with tarfile.open(tmp_path / "links.tar.gz", "w:gz") as archive:

        def add(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = "") -> None:
            member = tarfile.TarInfo(name)
            member.size, member.type, member.linkname = len(content), kind, target
            archive.addfile(member, io.BytesIO(content))

        add("./late.png", kind=tarfile.SYMTYPE, target="store/cat/1.png")
        add("./store/cat/1.png", contents[0])
        add("hard.png", kind=tarfile.LNKTYPE, target="./store/cat/1.png")
        add("hard.png", kind=tarfile.LNKTYPE, target="hard.png")
        add("store/cat/1.png", contents[1])
        add("set/cat", kind=tarfile.SYMTYPE, target="../store/cat")
        add("store/cat/loop", kind=tarfile.SYMTYPE, target="..")
        add("gone.png", kind=tarfile.SYMTYPE, target="/elsewhere.png")
        add("pipe.png", kind=tarfile.FIFOTYPE)
        add("__MACOSX/._1.png", b"of a file manager")
    items = read_items(tmp_path / "links.tar.gz")
    assert {item.key: open_image(item.source).width for item in items} == {
        "store/cat/1.png": 9,
        "late.png": 9,
        "hard.png": 8,
        "set/cat/1.png": 9,
    }
    reason = "(a link to nothing in the archive, or back to its own folder)"
    assert items.left_out_names == [
        f"store/cat/loop {reason}",
        f"gone.png {reason}",
        "pipe.png (a pipe, a device, or larger than 1 GiB)",
    ]
    assert items.left_out_count == 4

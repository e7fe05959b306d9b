"""Every kind of source gives the same pictures, and what is none of them is one sentence."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from vitviz import DataError, open_image
from vitviz.datasets import Item, read_items
from vitviz.images.file_kinds import HIDDEN, NO_PICTURE, left_out, picture_files, why_left_out

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


def of_zip(photos: Path) -> str:
    with zipfile.ZipFile(photos.parent / "photos.ZIP", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(photos.rglob("*")):
            archive.write(path, path.relative_to(photos.parent))
    return str(photos.parent / "photos.ZIP")


SOURCES = (of_folder, of_pattern, of_list, of_tar, of_zip, of_parquet, of_parquet_of_bytes)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_every_kind_of_source_gives_every_picture_once(photos: Path, source: Callable[[Path], str]) -> None:
    items = list(read_items(source(photos)))
    assert sorted(open_image(item.source).width for item in items) == [8, 9, 10, 11]
    assert len({item.key for item in items}) == 4
    # In the same order with the same names in every run.
    assert [item.key for item in read_items(source(photos))] == [item.key for item in items]


def of_all(photos: Path) -> str:
    return str(photos / "*")


@pytest.mark.parametrize("source", [of_folder, of_all, of_tar, of_zip])
def test_the_content_of_a_file_decides_and_other_files_are_counted(photos: Path, source: Callable[[Path], str]) -> None:
    (photos / "no ending").write_bytes((photos / "a.png").read_bytes())
    for name in ("._a.png", ".DS_Store", "Thumbs.db"):
        (photos / name).write_bytes(b"of a file manager")
    items = read_items(source(photos))
    for _ in range(2):
        sources = {Path(item.key).name: item.source for item in items}
        assert {"a.png", "no ending"} < set(sources)
        assert open_image(sources["no ending"]).size == (8, 5)
        # A star takes no hidden files.
        expected = {"notes.txt": NO_PICTURE, "table.csv": NO_PICTURE} | (
            {} if source is of_all else {"._a.png": HIDDEN}
        )
        assert {Path(name).name: why for name, why in items.left_out} == expected


@pytest.mark.skipif(os.name != "posix", reason="there are no pipes in folders")
def test_links_to_nothing_and_pipes_are_counted_and_called_so(photos: Path) -> None:
    (photos / "gone.jpg").symlink_to("nowhere.jpg")
    os.mkfifo(photos / "pipe.jpg")
    items = read_items(str(photos))
    assert [item.key for item in items] == sorted(NAMES)
    assert (len(items.left_out), items.left_out[0]) == (4, ("gone.jpg", "a link to nothing"))
    others = picture_files(photos.glob("*.jpg"), photos)[1]
    assert [why_left_out(path) for path in others] == ["a link to nothing", "a pipe, a socket or a device"]


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
    (tmp_path / "a.rar").touch()
    for name in ("broken.tar", "broken.zip"):
        (tmp_path / name).write_bytes(b"no archive" * 100)
    (tmp_path / "broken.parquet").write_bytes(b"no table" * 100)
    (tmp_path / "bytes.txt").write_bytes(os.urandom(100) + b"\xff")
    of_tar(photos)
    whole = (tmp_path / "photos.tar.gz").read_bytes()
    (tmp_path / "half.tar.gz").write_bytes(whole[: len(whole) // 2])
    of_parquet(photos)
    pyarrow.parquet.write_table(pa.table({"image": [1, 2]}), tmp_path / "numbers.parquet")
    for source, column, words in (
        ("absent", "image", f"no such file or folder in {tmp_path}; expected "),
        ([tmp_path], "image", "vitviz.run_batch takes a list of paths itself"),
        ("a.rar", "image", "a file of no such kind; expected "),
        ("broken.zip", "image", "damaged archive"),
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
            list(read_items(source, column))  # type: ignore[arg-type]
        assert str(source) in str(error.value) and words in str(error.value)


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
    (tmp_path / "set" / "results" / "parts").mkdir(parents=True)
    for name in ("_run.json", "map.png"):
        (tmp_path / "set" / "results" / name).touch()
    expected = ["all/one.png", "cat/c.png", "dog/c.png"]
    items = read_items(tmp_path / "set")
    assert [item.key for item in items] == expected
    assert [open_image(item.source).width for item in items] == [8, 10, 10]
    reason = "a link to a folder that leads to it"
    loops = [(name, reason) for name in ("all/loop", "cat/up", "dog/up")]
    assert items.left_out == [*loops, ("results", "results of vitviz batch")]
    for pattern in ("set/**/*.png", "set/*"):
        items = read_items(tmp_path / pattern)
        assert sorted(item.key for item in items) == [f"{tmp_path}/set/{name}" for name in expected]
    assert len(items.left_out) == 4


def test_a_picture_is_a_source_and_the_signs_of_patterns_are_letters_in_names(photos: Path) -> None:
    (photos / "a.png").rename((photos / "inside").rename(photos / "[x]") / "[a].png")
    assert [item.key for item in read_items(photos / "[x]" / "[a].png")] == [f"{photos}/[x]/[a].png"]
    assert len(list(read_items(photos / "[x]" / "*.png"))) == len(list(read_items(photos / "[[]x]" / "*.png"))) == 2


def test_a_folder_that_cannot_be_read_is_named(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, entries: Callable[[Path], Iterator[Path]] = Path.iterdir) -> Iterator[Path]:
        if path.name == "inside":
            raise PermissionError
        return entries(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "inside")
    items = read_items(photos)
    assert [item.key for item in items] == ["a.png", "b b.png", "é.png"]
    assert items.left_out[0] == ("inside", "a folder that cannot be read")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le with mark"])
def test_a_list_may_be_made_on_windows(photos: Path, encoding: str) -> None:
    names = ["a.png", "", "inside\\c.png", "é.png", "b b.png"]
    text = "\ufeff" * ("mark" in encoding) + "\r\n".join([*names, names[0]])
    (photos / "LIST.TXT").write_bytes(text.encode(encoding.removesuffix(" with mark")))
    items = read_items(photos / "LIST.TXT")
    found = {item.key: open_image(item.source).width for item in items}
    assert list(found.items()) == [("a.png", 8), ("inside/c.png", 10), ("é.png", 11), ("b b.png", 9)]
    assert items.left_out == [("a.png", "named before")]


@pytest.mark.parametrize(("encoding", "word"), [("utf-16-le", "null characters"), ("cp1252", "codec")])
def test_a_list_of_another_encoding_is_refused_with_what_to_save(photos: Path, encoding: str, word: str) -> None:
    (photos / "list.txt").write_bytes(("é.png\r\n" if encoding == "cp1252" else "a.png").encode(encoding))
    with pytest.raises(DataError, match=f"{word}.*; save it as UTF-8 text"):
        read_items(photos / "list.txt")


@pytest.mark.skipif(os.name != "posix", reason="no name ends in a space")
def test_a_list_names_pictures_as_they_are_on_disk(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decomposed = unicodedata.normalize("NFD", "ü")
    for name in (f"{decomposed}.png", "space.png ", f"{decomposed}/ü.png", "#1.png"):
        (photos / name).parent.mkdir(exist_ok=True)
        (photos / name).write_bytes((photos / "a.png").read_bytes())
    monkeypatch.setenv("HOME", str(photos))
    lines = ["~/ü.png", "photos/space.png ", "  photos/a.png ", "# gone:", "photos/gone.png", "~/ü/ü.png", "~/#1.png"]
    (tmp_path / "list.txt").write_text("\n".join([*lines, '"photos\\b b.png"', ""]), "utf-8")
    items = read_items(tmp_path / "list.txt")
    assert {item.key: item.source for item in items} == {
        "~/ü.png": photos / f"{decomposed}.png",
        "photos/space.png ": photos / "space.png ",
        "photos/a.png": photos / "a.png",
        "photos/gone.png": photos / "gone.png",
        # A name with two ways to compose a letter.
        "~/ü/ü.png": photos / decomposed / "ü.png",
        "~/#1.png": photos / "#1.png",
        "photos/b b.png": photos / "b b.png",
    }
    assert items.left_out == [("# gone:", "a comment")]


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
    assert ("other.parquet", "a table without a column 'image'") in items.left_out


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
        add("again.png", kind=tarfile.SYMTYPE, target="./late.png")
        add("store/cat/folder", kind=tarfile.SYMTYPE, target="..")
        add("loop.png", kind=tarfile.SYMTYPE, target="loop.png")
        add("gone.png", kind=tarfile.SYMTYPE, target="/elsewhere.png")
        add("pipe.png", kind=tarfile.FIFOTYPE)
        add("__MACOSX/._1.png", b"of a file manager")
    items = read_items(tmp_path / "links.tar.gz")
    assert {item.key: open_image(item.source).width for item in items} == {
        "store/cat/1.png": 9,
        "late.png": 9,
        "hard.png": 8,
        "again.png": 9,
    }
    assert items.left_out == [
        *((name, "a link to no file in the archive") for name in ("store/cat/folder", "loop.png", "gone.png")),
        ("pipe.png", "a pipe, a device, or larger than 1 GiB"),
        ("__MACOSX/._1.png", HIDDEN),
    ]


def test_replaced_members_of_a_zip_archive_count_once(photos: Path, tmp_path: Path) -> None:
    contents = [(photos / name).read_bytes() for name in NAMES]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("cat/1.png", contents[0])
        archive.writestr("cat/1.png", contents[1])
        with archive.open("../big.png", "w", force_zip64=True) as file:
            file.write(contents[2])
        archive.writestr("__MACOSX/cat/._1.png", b"of a file manager")
    items = read_items(tmp_path / "a.zip")
    assert {item.key: open_image(item.source).width for item in items} == {"cat/1.png": 9, "../big.png": 10}
    assert items.left_out == [("__MACOSX/cat/._1.png", HIDDEN)]


def test_members_of_a_zip_archive_that_cannot_be_read_are_named(photos: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("0.png", "1.png", "2.png", "utf--.png", "cp-.png"):
            archive.writestr(name, (photos / "a.png").read_bytes())
    content = (
        (tmp_path / "a.zip").read_bytes().replace(b"utf--", "utfé".encode()).replace(b"cp-", "cpé".encode("cp437"))
    )
    broken = bytearray(content)
    entries = [content.index(b"PK\x01\x02")]
    entries.append(content.index(b"PK\x01\x02", entries[0] + 1))
    # A flag says that the first is encrypted, the second has an unknown compression, and the third is damaged.
    broken[entries[0] + 8], broken[entries[1] + 10] = 1, 99
    broken[content.index(b"2.png") + len("2.png") + 40] ^= 255
    (tmp_path / "a.zip").write_bytes(broken)
    items = read_items(tmp_path / "a.zip")
    # Names are UTF-8 also where no flag says so, as macOS writes them.
    assert [item.key for item in items] == ["utfé.png", "cpé.png"]
    rare = "damaged, or compressed in a rare way"
    assert items.left_out == [("0.png", "encrypted"), ("1.png", rare), ("2.png", rare)]


def test_an_archive_may_be_of_links(photos: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(photos / "a.png", "store/1.png")
        for number in range(2000):
            link = tarfile.TarInfo(f"set/{number}.png")
            link.type, link.linkname = tarfile.SYMTYPE, "../store/1.png"
            archive.addfile(link)
    assert len(list(read_items(tmp_path / "a.tar.gz"))) == 2001


def test_a_table_may_state_classes(photos: Path) -> None:
    cells = [(photos / "a.png").read_bytes()] * 4
    features = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    numbers = pa.table({"image": cells, "label": [1, 0, -1, None]})
    for name, table, expected in (
        ("words", pa.table({"image": cells, "label": ["cat", "", "a dog", None]}), ["cat", "", "a dog", None]),
        ("numbers", numbers, ["1", "0", None, None]),
        ("named", numbers.replace_schema_metadata({"huggingface": json.dumps(features)}), ["dog", "cat", None, None]),
        ("other", pa.table({"image": cells, "label": [1.5, 2.0, -1.0, None]}), [None, "2", None, None]),
    ):
        pyarrow.parquet.write_table(table, photos / f"{name}.parquet")
        assert [item.label for item in read_items(photos / f"{name}.parquet")] == expected


def test_a_sentence_names_what_is_left_out_by_reason() -> None:
    assert left_out([]) == ""
    assert left_out([("a.jpg", HIDDEN)]) == "1 file left out: a.jpg (hidden)"
    others = [*((f"{number}.txt", NO_PICTURE) for number in range(1000)), ("gone.jpg", "a link to nothing")]
    named = ", ".join(f"{number}.txt" for number in range(8))
    expected = f"1,001 files left out: gone.jpg (a link to nothing); {named} and 992 more (not a picture)"
    assert left_out(others) == expected

"""Files are what their content is: camera files, animations, large and unfinished JPEG files, and other formats."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitviz
from tests.support.image_files import encoded, oriented_file, quadrants, tiff
from vitviz import Model
from vitviz.errors.kinds import ImageError
from vitviz.images import decoding, file_kinds, opening
from vitviz.images.file_kinds import HIDDEN, picture_files, why_left_out
from vitviz.images.image_facts import ImageFacts
from vitviz.images.opening import open_image
from vitviz.system.paths import files_in

pytestmark = pytest.mark.slow

# Files of cameras.


def directory(*entries: tuple[int, int, int, int], following: int = 0) -> bytes:
    return (
        struct.pack("<H", len(entries))
        + b"".join(struct.pack("<HHII", *each) for each in entries)
        + struct.pack("<I", following)
    )


def thumbnail_first(*more: tuple[int, int, int, int], beside: bytes = b"", following: int = 0) -> bytes:
    """A TIFF file with a small picture in its first directory, and more at byte 400."""
    entries = [(256, 3, 1, 8), (257, 3, 1, 8), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 600)]
    entries += [(278, 4, 1, 8), (279, 4, 1, 64), *more]
    first = b"II*\0\x08\0\0\0" + directory(*sorted(entries), following=following)
    return (first.ljust(400, b"\0") + beside).ljust(664, b"\x7f")


RAW = {
    "version.dng": thumbnail_first((50706, 1, 4, 1)),
    "by its name.PEF": thumbnail_first(),
    "canon.tif": b"II*\0\x10\0\0\0CR\2\0" + bytes(600),
    "canon.jpg": b"\0\0\0\x20ftypcrx " + bytes(99),
    "fuji.raf": b"FUJIFILMCCD-RAW 0201" + bytes(99),
    "olympus.orf": b"IIRO\x08\0\0\0" + bytes(99),
}  # fmt: skip


@pytest.mark.parametrize("name", RAW)
def test_a_file_of_a_camera_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ImageError, match=f"^{name}: a camera's raw file: develop it"):
        open_image(RAW[name], name)


def test_a_first_page_that_is_a_smaller_copy_is_refused_and_one_page_alone_is_not() -> None:
    page, small = directory((256, 3, 1, 8), (262, 3, 1, 1)), (254, 4, 1, 1)
    below, behind = thumbnail_first(small, (330, 4, 1, 400)), thumbnail_first(small, beside=page, following=400)
    for data in (below, behind):
        with pytest.raises(ImageError, match=r"^it: a TIFF file whose first page is a smaller copy .* a camera's raw"):
            open_image(data, "it")
    assert open_image(thumbnail_first((254, 4, 1, 1))).size == (8, 8)


@pytest.mark.parametrize(
    "data",
    [tiff(2, 2, 32, 3, 3, bytes(48)), tiff(2, 2, 16, 1, 3, bytes(8)), tiff(2, 2, 8, 3, 2, bytes(12))],
    ids=["floats of colours", "floats of 16 bits", "signed"],
)
def test_a_tiff_that_pillow_does_not_read_names_the_way_out(data: bytes) -> None:
    with pytest.raises(ImageError) as refusal:
        open_image(data, "it")
    assert str(refusal.value).startswith("it: a TIFF file of a kind that Pillow does not read")
    assert "vitviz.analyze(tifffile.imread(path), model, value_range=(0, " in str(refusal.value)


# Other formats.

OTHERS = {
    b"\xff\x0a" + bytes(9): "a JPEG XL image",
    b"\0\0\0\x0cJXL \r\n\x87\n": "a JPEG XL image",
    encoded(quadrants(), "JPEG2000"): "a JPEG 2000 image",
    bytes(128) + b"DICM": "a DICOM file",
    b"8BPS\0\1" + bytes(99): "a Photoshop document (PSD)",
    b"gimp xcf v011\0": "a GIMP document (XCF)",
    b"II\xbc\1" + bytes(99): "a JPEG XR image, such as an HDR screenshot",
    encoded(quadrants(), "DDS"): "a texture (DDS, KTX or TGA)",
    encoded(quadrants(), "TGA", compression="tga_rle"): "a texture (DDS, KTX or TGA)",
    encoded(quadrants(), "TGA"): "a texture (DDS, KTX or TGA)",
    encoded(quadrants(), "SGI"): "a QOI, SGI or PCX image",
    encoded(quadrants(), "PCX"): "a QOI, SGI or PCX image",
    encoded(quadrants(), "ICO"): "an icon",
    encoded(quadrants(), "ICNS"): "an icon",
    b"SIMPLE  =                    T" + bytes(99): "a FITS file",
    b"\x89HDF\r\n\x1a\n" + bytes(99): "an HDF5 or NetCDF file",
    b"ZISRAWFILE" + bytes(99): "a microscope's file",
    b"%!PS-Adobe-3.0 EPSF-3.0\n": "a PostScript document",
    b"\xc5\xd0\xd3\xc6" + bytes(99): "a PostScript document",
    b"v/1\1" + bytes(99): "an OpenEXR image",
    b"#?RADIANCE\n": "a Radiance HDR image",
    b"\x5c\1\0\0" + bytes(340) + b"n+1\0": "a NIfTI volume",
    b"\x93NUMPY\1" + bytes(99): "an array of NumPy",
}


@pytest.mark.parametrize("data", OTHERS, ids=list(OTHERS.values()))
def test_other_formats_are_called_by_their_names(data: bytes) -> None:
    with pytest.raises(ImageError) as refusal:
        open_image(data, "it")
    assert str(refusal.value).startswith(f"it: {OTHERS[data]}")


HEIC = [b"\0\0\0\x18ftyp" + brand + bytes(99) for brand in (b"heic", b"hevc", b"heix", b"heim", b"mif1", b"MiHB")]


@pytest.mark.parametrize("data", HEIC)
def test_a_heic_photo_names_its_extra_and_the_other_way_out(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    for module in (opening, decoding):
        monkeypatch.setattr(module, "heif_formats", decoding.heif_formats.__wrapped__)
    with pytest.raises(
        ImageError,
        match=r"^it: a HEIC photo, which needs pillow_heif: pip install 'pillow-heif>=1\.8'; .*export it as JPEG$",
    ):
        open_image(data, "it")


# The same picture in each: six colours above black.
PHOTOS = Path(__file__).parents[1] / "data"
COLOURS = np.array([(90, 140, 60), (200, 150, 125), (230, 120, 30), (90, 150, 220), (200, 60, 60), (128, 128, 128)])
SHOWN = np.concatenate([np.tile(COLOURS.repeat(8, 0), (16, 1, 1)), np.zeros((16, 48, 3), int)])


@pytest.mark.parametrize("name", ["plain", "turned"])
def test_a_heic_photo_is_opened_upright(name: str) -> None:
    path = PHOTOS / f"{name}.heic"
    for source in (path, path.read_bytes(), Image.open(io.BytesIO(path.read_bytes()), formats=decoding.heif_formats())):
        opened = open_image(source)
        assert opened.size == (48, 32) and opened.info == {}
        assert np.abs(np.subtract(opened, SHOWN)).max() <= 2


def test_a_damaged_heic_photo_is_refused() -> None:
    data = (PHOTOS / "plain.heic").read_bytes()
    for end in range(12, len(data), 7):
        with pytest.raises(ImageError, match=r"HEIC photo, damaged|damaged or cut short"):
            open_image(data[:end])


def test_a_heic_photo_that_once_ended_the_process_opens() -> None:
    data = bytearray((PHOTOS / "turned.heic").read_bytes())
    # The kind of an item, which is no text.
    data[data.index(b"Exif")] = 255
    assert open_image(bytes(data)).size == (48, 32)


@pytest.mark.parametrize("side", [1, 8001, 40_000, 2**31])
def test_a_heic_photo_that_claims_another_size_is_refused(side: int) -> None:
    data = bytearray((PHOTOS / "plain.heic").read_bytes())
    start = data.index(b"ispe") + 8
    data[start : start + 8] = struct.pack(">II", side, side)
    with pytest.raises(ImageError):
        open_image(bytes(data))


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_an_avif_picture_is_opened_upright(orientation: int) -> None:
    upright = np.asarray(quadrants().crop((0, 0, 32, 24)))
    data = oriented_file(upright, orientation, "AVIF", quality=100, subsampling="4:4:4")
    for source in (data, Image.open(io.BytesIO(data))):
        opened = open_image(source)
        assert opened.size == (32, 24)
        assert np.abs(np.subtract(opened, upright, dtype=int)).mean() < 4


# JPEG files without an end, and large ones.

NOISE = Image.fromarray(np.random.default_rng(4).integers(0, 256, (64, 96, 3), dtype=np.uint8))


@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}, {"subsampling": 0, "quality": 95}])
@pytest.mark.parametrize("end", [b"", b"\0\0", b"\xff"])
def test_a_jpeg_without_its_end_opens_whole(options: dict[str, int], end: bytes) -> None:
    data = encoded(NOISE, "JPEG", **options)
    assert np.array_equal(open_image(data[:-2] + end), open_image(data))


def test_a_progressive_jpeg_without_its_end_is_refused() -> None:
    data = encoded(NOISE, "JPEG", progressive=True)
    ends = [at for at in range(len(data)) if data.startswith(b"\xff\xda", at)][1:]
    assert len(ends) > 4
    for end in (*ends, ends[-1] + 8, ends[-1] + 20, len(data) - 40, len(data) - 2):
        with pytest.raises(ImageError, match="damaged or cut short"):
            open_image(data[:end])


@pytest.mark.parametrize("missing", [5, 40, 1000])
@pytest.mark.parametrize("image", [NOISE, Image.new("RGB", (640, 640), "teal")], ids=["noise", "plain"])
def test_a_jpeg_without_some_of_its_pixels_is_refused(missing: int, image: Image.Image) -> None:
    data = encoded(image, "JPEG", quality=90)
    with pytest.raises(ImageError, match="damaged or cut short"):
        open_image(data[:-missing])


def test_a_large_jpeg_is_reduced_and_keeps_its_coordinates(bundled: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    upright = np.asarray(quadrants(150).resize((602, 400)))
    data = oriented_file(upright, 6, "JPEG", quality=95)
    whole = vitviz.analyze(data, bundled)
    for module in (file_kinds, decoding, opening):
        monkeypatch.setattr(module, "MAX_PIXELS", 602 * 400 // 9)
    reduced = vitviz.analyze(data, bundled)
    image, geometry = reduced.prepared.image, reduced.prepared.geometry
    assert image.size == (151, 100)
    assert reduced.prepared.assumptions == ("it is reduced from 602×400 to 151×100 pixels",)
    assert (geometry.image_width, geometry.image_height) == (602, 400)
    assert np.abs(np.subtract(geometry.box, whole.prepared.geometry.box)).max() <= 4
    # The map is drawn on the smaller picture.
    heatmap = reduced.rollout()
    left, top, right, bottom = heatmap.geometry.box
    assert right <= 151 and bottom <= 100
    assert np.isfinite(heatmap.pixels()).mean() == pytest.approx((right - left) * (bottom - top) / 15_100, abs=0.03)
    again = vitviz.analyze(open_image(data), bundled)
    assert again.prepared.geometry == geometry and again.prepared.assumptions == reduced.prepared.assumptions
    # A copy of another size has its own coordinates.
    assert ImageFacts.of(open_image(open_image(data).crop((0, 0, 40, 40)))).size == (40, 40)


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_an_animation_the_first_frame_is_read_and_that_is_said(format: str) -> None:
    white, frames = Image.new("RGB", (32, 32), "white"), [quadrants()] * 2
    moving = encoded(white, format, save_all=True, append_images=frames)
    for source in (moving, Image.open(io.BytesIO(moving))):
        assert "the first, which is of one colour" in "".join(ImageFacts.of(open_image(source)).assumptions)
    chosen = Image.open(io.BytesIO(moving))
    chosen.seek(1)
    assert open_image(chosen).info == {}
    assert open_image(encoded(white, format)).info == {}
    first = open_image(encoded(quadrants(), format, save_all=True, append_images=[white]))
    assert ImageFacts.of(first).assumptions == ("it has several frames or pages, and the first is read",)


def test_the_pictures_of_a_folder_are_known_by_their_content(tmp_path: Path) -> None:
    pictures = {
        "a.jpg": b"<html>", "b.JPG": encoded(quadrants(), "JPEG"), "no ending": encoded(quadrants(), "PNG"),
        "old.dat": tiff(2, 2, 8, 1, 1, bytes(4)),
        "deep/c.webp.part": encoded(quadrants(), "WEBP"), "IMG": HEIC[0], "DSC.CR3": RAW["canon.jpg"],
    }  # fmt: skip
    others = {"notes.txt": b"notes", "empty": b"", "clip.mp4": b"\0\0\0\x18ftypisom", "BM.txt": b"BMW is a car of old"}
    hidden = dict.fromkeys(
        ("._a.jpg", ".DS_Store", "Thumbs.db", "desktop.ini", ".trash/a.jpg", "__MACOSX/b.jpg", "@eaDir/c.jpg"), b"x"
    )
    for name, content in {**pictures, **others, **hidden}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    found, left_out = picture_files(files_in(tmp_path), tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in found] == sorted(pictures)
    hidden_pictures = sorted(name for name in hidden if name.endswith(".jpg"))
    assert [path.relative_to(tmp_path).as_posix() for path in left_out] == sorted(others) + hidden_pictures
    assert why_left_out(left_out[-1]) == HIDDEN

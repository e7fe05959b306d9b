"""Bad input: files that are broken, are not what they are called, or were made to take a machine down.

``python -m tests.hostile_files FOLDER`` writes them. Every run makes the same bytes; nothing of it is downloaded.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from tests.support.hostile_pieces import (
    ASCII_PIXELS,
    BIG,
    BMP,
    ENTITIES,
    FORMATS,
    GIF,
    GIF_FRAME,
    HTML,
    JPEG,
    MPO,
    PICTURE,
    PNG,
    PNG_END,
    PNG_HEAD,
    PNG_PIXELS,
    POSTSCRIPT,
    SVG,
    WEBP,
    animated_png,
    archive,
    colour_profile,
    cut,
    deflated_tiff,
    deflated_zeros,
    entry,
    exif,
    exif_of_fractions,
    exif_of_one_place,
    fits,
    flipped,
    flood_of_frames,
    gif_with,
    hidden_directory,
    in_segments,
    interlaced_png,
    jpeg_with,
    long_exif,
    looped_tiff,
    many_frames,
    moved_gif,
    moving,
    noise,
    other,
    overlapping_tiles,
    photoshop,
    plain,
    png_ending_with,
    png_header,
    png_of_zeros,
    png_with,
    profile_segments,
    raw_profile,
    run_length_bmp,
    scan_bomb,
    script_gif,
    segment,
    separate_scans,
    tag_bomb,
    text_bomb,
    thumbnails,
    tiff,
    turned_jpeg,
    upright_jpeg,
    webp_with,
)
from tests.support.image_files import STORED, animated_webp, bmp, chunk, encoded, gif, jpeg, riff

# What is to become of a file.


class Outcome(NamedTuple):
    """A picture of this size, or a message with these words; either one where both are missing."""

    size: tuple[int, int] | None = None
    words: str | None = None
    # Whether it shows red and green above blue and black.
    is_whole: bool = False


def opens(width: int, height: int) -> Outcome:
    return Outcome((width, height))


def refused(words: str) -> Outcome:
    return Outcome(words=words)


WHOLE = Outcome((32, 32), is_whole=True)
EITHER = Outcome()
DAMAGED = refused("damaged")
OTHER = refused("not an image; expected a JPEG, PNG, WEBP, GIF, TIFF or BMP file")
PIECES = refused("too many small pieces")
BESIDE, NUMBERS = refused("bytes beside its pixels"), refused("numbers beside its pixels")
TO_READ, MEMORY = refused("bytes to read"), refused("MB of memory")


class HostileFile(NamedTuple):
    """A file of the corpus, and what is to become of it."""

    make: Callable[[], bytes]
    outcome: Outcome


# Names that lie, break the line or lead elsewhere, of files that are none.
RIGHT_TO_LEFT = "\u202egpj.exe"
NAMES = (
    RIGHT_TO_LEFT,
    "\u2066isolated\u2069 \u200f.png",
    "two\nlines: saved.png",
    "\r\x1b[2Jcleared.png",
    "tab\tand\x7f.png",
    "..\\..\\windows\\system32.png",
    "%2e%2e%2f%2e%2e%2fescaped.png",
    "<img src=x onerror=alert(1)>.png",
    "&lt;b&gt; $$x^2$$ [a](b) *c* `d`.png",
    "-rf --version.png",
    "'; DROP TABLE pictures; --.png",
    "{0.__class__} %s %n.png",
    "n" * 250 + ".png",
    "line\u2028separated\u0085.png",
    "zero\ufeffwidth\u00ad.png",
)

MAKERS: dict[str, tuple[Callable[[], bytes], Outcome]] = {
    # No pictures.
    "zero.jpg": (lambda: b"", refused("an empty file")),
    "blank.png": (lambda: b" \n" * 5000, refused("an empty file")),
    "page.jpg": (lambda: HTML, refused("an HTML page")),
    "drawing.jpg": (lambda: SVG, refused("an SVG drawing")),
    "entities.svg": (lambda: ENTITIES, refused("an SVG drawing")),
    "poster.jpg": (lambda: POSTSCRIPT, refused("a text file; expected a JPEG")),
    "poster.eps": (lambda: b"\xc5\xd0\xd3\xc6" + struct.pack("<6I", 30, 99, 0, 0, 0, 0) + POSTSCRIPT, OTHER),
    "paper.png": (lambda: b"%PDF-1.7\n1 0 obj\n<</OpenAction<</S/Launch/F(sh)>>>>", refused("a PDF document")),
    "layers.psd": (photoshop, OTHER),
    "stars.fits": (fits, refused("a text file; expected a JPEG")),
    "digits.ppm": (lambda: ASCII_PIXELS, refused("a text file; expected a JPEG")),
    "huge.ppm": (lambda: b"P6\n2000000000 2000000000\n255\n" + bytes(99), OTHER),
    "icon.jpg": (other("ICO"), OTHER),
    "targa.jpg": (other("TGA"), OTHER),
    "wavelets.jpg": (other("JPEG2000"), OTHER),
    "texture.jpg": (other("DDS"), OTHER),
    "rows.jpg": (other("PCX"), OTHER),
    "apple.jpg": (other("ICNS"), OTHER),
    "bits.jpg": (lambda: encoded(PICTURE.convert("1"), "XBM"), refused("a text file")),
    "windows.jpg": (lambda: b"\xd7\xcd\xc6\x9a" + bytes(80), OTHER),
    "phone.heic": (lambda: struct.pack(">I", 24) + b"ftypheic" + bytes(999), refused("a HEIC photo; expected a JPEG")),
    "phone.jpg": (lambda: struct.pack(">I", 24) + b"ftypmif1" + bytes(999), refused("a HEIC photo; expected a JPEG")),
    "web.avif": (lambda: struct.pack(">I", 32) + b"ftypavif" + bytes(999), refused("an AVIF image; expected a JPEG")),
    "clip.gif": (lambda: struct.pack(">I", 32) + b"ftypisom" + bytes(999), refused("a video")),
    "archive.png": (archive, refused("a ZIP archive")),
    "program.bmp": (lambda: b"MZ" + noise(500), OTHER),
    "pickle.png": (lambda: b"\x80\x04\x95cos\nsystem\n(S'touch executed'\ntR.", OTHER),
    "noise.webp": (lambda: noise(5000), OTHER),
    # Every format, cut short and with wrong bits.
    **{f"cut.{format}": (lambda data=data: cut(data), DAMAGED) for format, data in FORMATS.items()},
    # A first picture that is whole.
    "cut.mpo": (lambda: cut(MPO), WHOLE),
    **{f"flipped.{format}": (lambda data=data: flipped(data), EITHER) for format, data in FORMATS.items()},
    **{f"trailing.{format}": (lambda data=data: data + noise(9999), WHOLE) for format, data in FORMATS.items()},
    # Too small, too long, too large.
    "dot.png": (plain("PNG", "RGB", 1), refused("1×1 pixels; expected at least 2×2")),
    "dot.jpg": (plain("JPEG", "RGB", 1), refused("1×1 pixels; expected at least 2×2")),
    "dot.webp": (plain("WEBP", "RGB", 1), refused("1×1 pixels; expected at least 2×2")),
    "strip.png": (lambda: png_of_zeros(30_000, 1), refused("30000×1 pixels; expected at least 2×2")),
    "strip.jpg": (lambda: encoded(Image.new("L", (30_000, 1)), "JPEG"), refused("30000×1 pixels")),
    "column.gif": (lambda: encoded(Image.new("L", (1, 30_000)), "GIF"), refused("1×30000 pixels")),
    "two rows.png": (lambda: png_of_zeros(30_000, 2), opens(30_000, 2)),
    "two columns.tif": (lambda: deflated_tiff(2, 100_000), opens(2, 100_000)),
    "long.png": (lambda: png_of_zeros(32_000_000, 2), refused("32000000×2 pixels; expected at most 100,000")),
    "empty.png": (lambda: png_of_zeros(0, 0), DAMAGED),
    "empty.gif": (lambda: gif((0, 0), (0, 0)), DAMAGED),
    "empty.bmp": (lambda: bmp(0, 9), DAMAGED),
    "empty.tif": (lambda: tiff(0, 0), DAMAGED),
    "empty.jpg": (lambda: jpeg(0, 0), DAMAGED),
    "bomb.png": (lambda: png_header(2**31 - 1, 2**31 - 1) + PNG_PIXELS + PNG_END, refused("at most 64,000,000")),
    "bomb.gif": (lambda: gif((65_535, 65_535), (1, 1)), refused("at most 64,000,000")),
    "bomb.tif": (lambda: tiff(60_000, 60_000, (259, 3, 1, 8), data=deflated_zeros(999)), refused("at most 64,000,000")),
    "bomb.webp": (
        lambda: riff((b"VP8L", b"\x2f" + struct.pack("<I", 16_383 | 16_383 << 14) + bytes(20))),
        refused("at most 64,000,000"),
    ),
    "moving bomb.webp": (lambda: animated_webp(2**24, 255), refused("at most 64,000,000")),
    "moving bomb.png": (lambda: animated_png(13_000, 13_000), refused("an animation of 169,000,000 pixels")),
    "bomb.bmp": (lambda: bmp(2**31 - 1, 2**31 - 1), refused("at most 64,000,000")),
    "bomb.jpg": (lambda: jpeg(65_535, 65_535), refused("at most 64,000,000")),
    "turned bomb.tif": (lambda: tiff(60_000, 9_000, (274, 3, 1, 6)), refused("at most 64,000,000")),
    "nothing in it.png": (lambda: png_header(BIG, BIG) + PNG_PIXELS + PNG_END, DAMAGED),
    "nothing in it.tif": (lambda: deflated_tiff(32, 32, (256, 4, 1, BIG), (257, 4, 1, BIG)), DAMAGED),
    "frame far away.gif": (lambda: moved_gif(65_000, 65_000), refused("at most 64,000,000")),
    "frame outside.gif": (lambda: moved_gif(5_000, 5_000), opens(5_032, 5_032)),
    # The most that is opened, and what would need several times its pixels.
    "largest.png": (lambda: png_of_zeros(BIG, BIG), opens(BIG, BIG)),
    "largest transparent.png": (lambda: png_of_zeros(9_504, 6_336, 6, 4), opens(9_504, 6_336)),
    "transparent.png": (lambda: png_of_zeros(BIG, BIG, 6, 4), MEMORY),
    "largest.tif": (lambda: deflated_tiff(BIG, BIG), opens(BIG, BIG)),
    "largest.jpg": (lambda: jpeg(BIG, BIG), opens(BIG, BIG)),
    "largest.webp": (plain("WEBP", "RGB", 5_480, lossless=True, method=0), opens(5_480, 5_480)),
    "canvases.webp": (lambda: animated_webp(BIG, BIG), MEMORY),
    "largest turned.jpg": (lambda: turned_jpeg(9_504, 6_336), opens(6_336, 9_504)),
    "turned.jpg": (lambda: turned_jpeg(BIG, BIG), MEMORY),
    "large tile.tif": (
        lambda: deflated_tiff(32, 32, (322, 4, 1, 60_000), (323, 4, 1, 60_000), (324, 4, 1, 4096), (325, 4, 1, 99)),
        MEMORY,
    ),
    "coefficients.jpg": (lambda: separate_scans(1, BIG), opens(BIG, BIG)),
    "inks.jpg": (plain("JPEG", "CMYK", 6_400, progressive=True), MEMORY),
    # Scans, pieces, numbers, texts: a little that makes much.
    "scans.jpg": (lambda: scan_bomb(30_000, BIG, True), refused("8000×8000 pixels in 30,0")),
    "separate scans.jpg": (lambda: separate_scans(30_000, BIG), refused("8000×8000 pixels in 30,002 scans")),
    "twenty scans.jpg": (lambda: scan_bomb(14, BIG, True), opens(BIG, BIG)),
    "scans of little.jpg": (lambda: scan_bomb(30_000, 32, True), opens(32, 32)),
    "comments.gif": (lambda: gif_with(b"!\xfe\0" * 1_000_000), PIECES),
    "comment.gif": (lambda: gif_with(b"!\xfe" + b"\1A" * 500_000 + b"\0"), PIECES),
    "long comment.gif": (lambda: gif_with(b"!\xfe" + (b"\xff" + b"A" * 255) * 4_000 + b"\0"), WHOLE),
    "comments.jpg": (lambda: jpeg_with(segment(0xFE, b"") * 500_000), PIECES),
    "crumbs.jpg": (lambda: jpeg_with(*in_segments(b"A") * 300_000), PIECES),
    "long comments.jpg": (lambda: jpeg_with(segment(0xFE, b"A" * 65_000) * 300), BESIDE),
    "chunks.png": (lambda: png_with(chunk(b"prVt", b"") * 300_000), PIECES),
    "last chunks.png": (lambda: png_ending_with(chunk(b"prVt", b"") * 300_000), PIECES),
    "no pixels.png": (lambda: png_with(chunk(b"IDAT", b"") * 200_000), WHOLE),
    "last words.png": (lambda: png_ending_with(chunk(b"cHRM", b"\1\2\3\4" * 5 * 2**20)), BESIDE),
    "text.png": (lambda: png_with(chunk(b"tEXt", b"a\0" + b"b" * 17 * 2**20)), BESIDE),
    "text bomb.png": (lambda: png_with(text_bomb(b"zTXt", b"Comment\0\0")), refused("too large")),
    "last text bomb.png": (lambda: png_ending_with(text_bomb(b"zTXt", b"Comment\0\0")), refused("too large")),
    "words bomb.png": (lambda: png_with(text_bomb(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0")), refused("too large")),
    "profile bomb.png": (lambda: png_with(text_bomb(b"iCCP", b"sRGB\0\0")), refused("too large")),
    "texts.png": (
        lambda: png_with(chunk(b"zTXt", b"Comment\0\0" + deflated_zeros(2**20)) * 70),
        refused("Too much memory used in text chunks"),
    ),
    "more pixels.png": (lambda: PNG_HEAD + chunk(b"IDAT", deflated_zeros(2**28)) + PNG_END, opens(32, 32)),
    "fractions.jpg": (lambda: jpeg_with(*in_segments(exif_of_fractions(500_000))), NUMBERS),
    "some fractions.jpg": (lambda: jpeg_with(*in_segments(exif_of_fractions(140_000))), WHOLE),
    "fractions.png": (lambda: png_with(chunk(b"eXIf", exif_of_fractions(500_000))), NUMBERS),
    "fractions.webp": (lambda: webp_with(EXIF=exif_of_fractions(500_000)), NUMBERS),
    "hexadecimal.png": (lambda: png_with(raw_profile(exif(entry(0x0112, 3, 1, 3)))), opens(32, 32)),
    "hexadecimal fractions.png": (lambda: png_with(raw_profile(exif_of_fractions(200_000))), NUMBERS),
    "prefixes.png": (lambda: png_with(chunk(b"eXIf", b"Exif\0\0" * 500_000)), PIECES),
    "prefixed fractions.jpg": (lambda: jpeg_with(*in_segments(b"Exif\0\0" * 9 + exif_of_fractions(500_000))), NUMBERS),
    "fractions.tif": (lambda: tiff(32, 32, (282, 5, 500_000, bytes(4_000_000)), data=bytes(1024)), NUMBERS),
    "same place.jpg": (lambda: jpeg_with(*in_segments(exif_of_one_place(7, 50_000))), BESIDE),
    "index.jpg": (lambda: jpeg_with(segment(0xE2, b"MPF\0" + exif_of_one_place(3, 25_000))), BESIDE),
    "pictures.mpo": (lambda: jpeg_with(segment(0xE2, b"MPF\0" + exif(entry(0xB001, 4, 1, 2**32 - 1)))), EITHER),
    "tags.tif": (tag_bomb, BESIDE),
    "hidden tags.tif": (hidden_directory, NUMBERS),
    "strips.tif": (lambda: tiff(32, 32, (273, 1, 2**20, bytes([200]) * 2**20), (278, 4, 1, 1)), NUMBERS),
    "overlapping tiles.tif": (overlapping_tiles, TO_READ),
    "strips outside.tif": (lambda: tiff(32, 32, (273, 4, 1, 2**32 - 2), data=bytes(1024)), DAMAGED),
    "endless tag.tif": (lambda: tiff(32, 32, (700, 1, 2**32 - 1, 4096), data=bytes(1024)), EITHER),
    "loop.tif": (looped_tiff, opens(32, 32)),
    "no rows.tif": (lambda: tiff(32, 32, (278, 4, 1, 0), data=bytes(1024)), EITHER),
    "samples.tif": (lambda: tiff(32, 32, (277, 3, 1, 65_535), data=bytes(1024)), DAMAGED),
    "entries.tif": (lambda: b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 2**60) + bytes(2**16), DAMAGED),
    "lines.bmp": (lambda: run_length_bmp(BIG, b"\1\7\0\0" * BIG), refused("run-length encoded")),
    "some lines.bmp": (lambda: run_length_bmp(2_000, b"\1\7\0\0" * 2_000), opens(2_000, 2_000)),
    "jumps.bmp": (lambda: run_length_bmp(2_000, b"\0\2\xff\xff" * 500), EITHER),
    "head.bmp": (lambda: BMP[:14] + struct.pack("<I", 2**32 - 1) + BMP[18:], DAMAGED),
    "upside down.bmp": (lambda: BMP[:22] + struct.pack("<i", -32) + BMP[26:], opens(32, 32)),
    "depth.bmp": (lambda: BMP[:22] + struct.pack("<i", -(2**31)) + BMP[26:], EITHER),
    "frames.webp": (lambda: flood_of_frames(50_000), opens(32, 32)),
    "frames.gif": (lambda: many_frames(5_000), WHOLE),
    "says more.webp": (lambda: WEBP[:4] + struct.pack("<I", 2**32 - 10) + WEBP[8:], EITHER),
    # Broken in one place.
    "wrong sum.png": (lambda: PNG_HEAD[:-1] + b"\0" + PNG_PIXELS + PNG_END, DAMAGED),
    "no data.png": (lambda: PNG_HEAD + PNG_END, DAMAGED),
    "no end.png": (lambda: PNG_HEAD + PNG_PIXELS, EITHER),
    "no palette.png": (lambda: png_header(32, 32, 8, 3) + PNG_PIXELS + PNG_END, EITHER),
    "two headers.png": (lambda: png_with(png_header(64, 64)[8:]), DAMAGED),
    "interlaced.png": (interlaced_png, WHOLE),
    "cut interlaced.png": (lambda: cut(interlaced_png()), DAMAGED),
    "coefficients are noise.jpg": (lambda: JPEG[: JPEG.index(b"\xff\xda") + 14] + noise(3000), EITHER),
    "no tables.jpg": (lambda: JPEG.replace(b"\xff\xdb", b"\xff\xfe").replace(b"\xff\xc4", b"\xff\xfe"), DAMAGED),
    "wrong table.jpg": (lambda: JPEG.replace(b"\xff\xc4\0\x1f\0", b"\xff\xc4\0\x1f\x7f"), DAMAGED),
    "twelve bits.jpg": (lambda: JPEG.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"), DAMAGED),
    "lossless.jpg": (lambda: JPEG.replace(b"\xff\xc0", b"\xff\xc3"), EITHER),
    "arithmetic.jpg": (lambda: JPEG.replace(b"\xff\xc0", b"\xff\xc9"), EITHER),
    "wrong code size.gif": (lambda: GIF[: GIF_FRAME + 10] + b"\x63" + GIF[GIF_FRAME + 11 :], DAMAGED),
    # Two things at once.
    "picture and archive.jpg": (lambda: JPEG + archive(), WHOLE),
    "picture and page.png": (lambda: PNG + HTML, WHOLE),
    "page inside.png": (lambda: png_with(chunk(b"tEXt", b"Comment\0" + HTML)), WHOLE),
    "page inside.jpg": (lambda: jpeg_with(segment(0xFE, HTML)), WHOLE),
    "script.gif": (script_gif, opens(10_799, 32)),
    "picture and program.bmp": (lambda: BMP + b"MZ" + noise(99), WHOLE),
    "page first.jpg": (lambda: HTML + JPEG, refused("an HTML page")),
    "archive first.jpg": (lambda: archive() + JPEG, refused("a ZIP archive")),
    # Unusual, and whole.
    "moving.png": (lambda: encoded(PICTURE, "PNG", **moving()), WHOLE),
    "moving.webp": (lambda: encoded(PICTURE, "WEBP", **moving(lossless=True)), WHOLE),
    "pages.tif": (lambda: encoded(PICTURE, "TIFF", save_all=True, append_images=[PICTURE] * 99), WHOLE),
    "progressive.jpg": (other("JPEG", progressive=True, quality=95, subsampling=0), WHOLE),
    "inks whole.jpg": (lambda: encoded(PICTURE.convert("CMYK"), "JPEG", quality=100), WHOLE),
    "inks.tif": (lambda: encoded(PICTURE.convert("CMYK"), "TIFF"), WHOLE),
    "lightness.tif": (plain("TIFF", "LAB", 32), opens(32, 32)),
    "deep.png": (plain("PNG", "I;16", 32), opens(32, 32)),
    "deep.tif": (plain("TIFF", "I;16", 32), opens(32, 32)),
    "palette.png": (lambda: encoded(PICTURE.quantize(4), "PNG"), WHOLE),
    "clear palette.png": (lambda: encoded(PICTURE.quantize(4), "PNG", transparency=bytes([255] * 4)), WHOLE),
    "clear.gif": (lambda: encoded(PICTURE.quantize(4), "GIF", transparency=200), WHOLE),
    **{f"turned {way}.jpg": (lambda way=way: upright_jpeg(way), WHOLE) for way in STORED},
    "huge exif.jpg": (lambda: jpeg_with(*in_segments(long_exif(64_000))), WHOLE),
    "huge exif.png": (lambda: png_with(chunk(b"eXIf", long_exif(10_000_000))), WHOLE),
    "broken exif.jpg": (lambda: jpeg_with(segment(0xE1, b"Exif\0\0II*\0" + b"\xff" * 999)), WHOLE),
    "thumbnails.jpg": (thumbnails, WHOLE),
    "profile.jpg": (lambda: jpeg_with(*profile_segments(colour_profile())), WHOLE),
    "huge profile.jpg": (lambda: jpeg_with(*profile_segments(noise(3_000_000))), WHOLE),
    "broken profile.jpg": (lambda: jpeg_with(*profile_segments(b"\xff" * 99)), WHOLE),
    "part of a profile.jpg": (lambda: jpeg_with(*profile_segments(colour_profile(), claimed=200)), WHOLE),
    "broken profile.png": (lambda: png_with(chunk(b"iCCP", b"x\0\0" + noise(500))), WHOLE),
    "broken profile.webp": (lambda: webp_with(ICCP=noise(500)), WHOLE),
    "broken profile.tif": (lambda: encoded(PICTURE, "TIFF", icc_profile=noise(500)), WHOLE),
    **{name: (lambda: b"\0", OTHER) for name in NAMES},
}


FILES = {name: HostileFile(*said) for name, said in MAKERS.items()}


# What is no file at all.


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


PLACES: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe.jpg": (pipe, "a pipe, a socket or a device"),
    "endless.jpg": (device, "a pipe, a socket or a device"),
    "circle.jpg": (lambda path: path.symlink_to(path.name), "cannot be read"),
    "nowhere.jpg": (lambda path: path.symlink_to("gone.jpg"), "no such file"),
    "folder.jpg": (Path.mkdir, "a directory"),
}


def write(folder: Path) -> None:
    """The corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in FILES.items():
        (folder / name).write_bytes(file.make())
    for name, (put, _) in PLACES.items():
        put(folder / name)


if __name__ == "__main__":
    write(Path(sys.argv[1]))

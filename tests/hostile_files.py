"""Hostile image files: broken, misnamed, or made to exhaust a machine.

Every run makes the same bytes; nothing is downloaded.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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
    SVG,
    WEBP,
    animated_png,
    archive,
    blank_as,
    colour_profile,
    deflated_tiff,
    deflated_zeros,
    entry,
    exif,
    exif_of_fractions,
    exif_of_one_place,
    flip_bits,
    flood_of_frames,
    gif_with,
    hidden_directory,
    in_segments,
    interlaced_png,
    jpeg_with,
    long_exif,
    looped_tiff,
    many_frames,
    noise,
    offset_gif,
    overlapping_tiles,
    png_ending_with,
    png_header,
    png_of_zeros,
    png_with,
    profile_segments,
    raw_profile,
    rotated_jpeg,
    run_length_bmp,
    scan_bomb,
    script_gif,
    segment,
    separate_scans,
    tag_bomb,
    text_bomb,
    thumbnails,
    tiff,
    truncate,
    webp_with,
)
from tests.support.image_files import animated_webp, bmp, chunk, encoded, gif, jpeg, riff
from vitviz.images.file_kinds import EXPECTED

# The expected outcome of a file.


class Outcome(NamedTuple):
    """A picture of this size, or a message with these words; without both, either a picture or a message."""

    size: tuple[int, int] | None = None
    words: str | None = None
    # Whether the picture shows red and green above blue and black.
    is_complete: bool = False


def opens(width: int, height: int) -> Outcome:
    return Outcome((width, height))


def refused_with(words: str) -> Outcome:
    return Outcome(words=words)


COMPLETE = Outcome((32, 32), is_complete=True)
EITHER = Outcome()
DAMAGED, UNREAD = refused_with("damaged"), refused_with("a kind that Pillow does not read")
NO_IMAGE = refused_with(f"not an image; {EXPECTED}")
# By its pixels, or by the memory that a child may take.
REFUSED = refused_with("")
# Pillow opens it, or the child that tries ends by its limits.
LIMITED = EITHER


class HostileFile(NamedTuple):
    """A file of the corpus and its expected outcome."""

    make: Callable[[], bytes]
    outcome: Outcome


PROGRESSIVE = encoded(PICTURE, "JPEG", progressive=True)
LAST_SCAN = PROGRESSIVE.rindex(b"\xff\xda")

# Names that deceive, break the line or lead to other folders; the files hold no image.
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
    # Files that are no pictures, of the kinds that take most to be told; tests/images names them all.
    "zero.jpg": (lambda: b"", refused_with("an empty file")),
    "drawing.jpg": (lambda: SVG, refused_with("an SVG drawing")),
    "entities.svg": (lambda: ENTITIES, refused_with("an SVG drawing")),
    "digits.ppm": (lambda: ASCII_PIXELS, refused_with("at most 64,000,000 are opened")),
    "huge.ppm": (
        lambda: b"P6\n2000000000 2000000000\n255\n" + bytes(99),
        refused_with("at most 64,000,000 are opened"),
    ),
    "pickle.png": (lambda: b"\x80\x04\x95cos\nsystem\n(S'touch executed'\ntR.", NO_IMAGE),
    # Every format, truncated and with wrong bits.
    **{f"cut.{format}": (lambda data=data: truncate(data), DAMAGED) for format, data in FORMATS.items()},
    "cut.tif": (lambda: truncate(FORMATS["tif"]), UNREAD),
    # The first of its two pictures is complete.
    "cut.mpo": (lambda: truncate(MPO), COMPLETE),
    **{f"flipped.{format}": (lambda data=data: flip_bits(data), EITHER) for format, data in FORMATS.items()},
    **{f"trailing.{format}": (lambda data=data: data + noise(9999), COMPLETE) for format, data in FORMATS.items()},
    # Too small, too long, too large.
    "dot.png": (blank_as("PNG", "RGB", 1), refused_with("1×1 pixels; expected at least 2×2")),
    "two rows.png": (lambda: png_of_zeros(30_000, 2), opens(30_000, 2)),
    "two columns.tif": (lambda: deflated_tiff(2, 100_000), opens(2, 100_000)),
    "long.png": (lambda: png_of_zeros(32_000_000, 2), refused_with("32000000×2 pixels; expected at most 100,000")),
    "empty.png": (lambda: png_of_zeros(0, 0), DAMAGED),
    "empty.gif": (lambda: gif((0, 0), (0, 0)), DAMAGED),
    "empty.bmp": (lambda: bmp(0, 9), DAMAGED),
    "empty.tif": (lambda: tiff(0, 0), UNREAD),
    "empty.jpg": (lambda: jpeg(0, 0), DAMAGED),
    "bomb.png": (lambda: png_header(2**31 - 1, 2**31 - 1) + PNG_PIXELS + PNG_END, refused_with("at most 64,000,000")),
    "bomb.webp": (lambda: riff((b"VP8L", b"\x2f" + struct.pack("<I", 16_383 | 16_383 << 14) + bytes(20))), REFUSED),
    "moving bomb.webp": (lambda: animated_webp(2**24, 255), REFUSED),
    "moving bomb.png": (lambda: animated_png(13_000, 13_000), LIMITED),
    "bomb.jpg": (lambda: jpeg(65_535, 65_535), refused_with("at most 64,000,000")),
    "turned bomb.tif": (lambda: tiff(60_000, 9_000, (274, 3, 1, 6)), refused_with("at most 64,000,000")),
    "nothing in it.png": (lambda: png_header(BIG, BIG) + PNG_PIXELS + PNG_END, DAMAGED),
    "nothing in it.tif": (lambda: deflated_tiff(32, 32, (256, 4, 1, BIG), (257, 4, 1, BIG)), UNREAD),
    "frame far away.gif": (lambda: offset_gif(65_000, 65_000), refused_with("at most 64,000,000")),
    "frame outside.gif": (lambda: offset_gif(5_000, 5_000), opens(5_032, 5_032)),
    # The largest pictures that are opened, and ones that would need several times the memory of their pixels.
    "largest.png": (lambda: png_of_zeros(BIG, BIG), opens(BIG, BIG)),
    "largest transparent.png": (lambda: png_of_zeros(9_504, 6_336, 6, 4), opens(9_504, 6_336)),
    "transparent.png": (lambda: png_of_zeros(BIG, BIG, 6, 4), LIMITED),
    "largest.tif": (lambda: deflated_tiff(BIG, BIG), opens(BIG, BIG)),
    "largest.jpg": (lambda: jpeg(BIG, BIG), opens(BIG, BIG)),
    "largest.webp": (blank_as("WEBP", "RGB", 5_480, lossless=True, method=0), opens(5_480, 5_480)),
    "canvases.webp": (lambda: animated_webp(BIG, BIG), LIMITED),
    "largest turned.jpg": (lambda: rotated_jpeg(9_504, 6_336), opens(6_336, 9_504)),
    "turned.jpg": (lambda: rotated_jpeg(BIG, BIG), LIMITED),
    "large tile.tif": (
        lambda: deflated_tiff(32, 32, (322, 4, 1, 60_000), (323, 4, 1, 60_000), (324, 4, 1, 4096), (325, 4, 1, 99)),
        LIMITED,
    ),
    "coefficients.jpg": (lambda: separate_scans(1, BIG), opens(BIG, BIG)),
    "inks.jpg": (blank_as("JPEG", "CMYK", 6_400, progressive=True), LIMITED),
    # Small files that expand to many scans, segments, numbers or texts.
    "scans.jpg": (lambda: scan_bomb(30_000, BIG, True), LIMITED),
    "separate scans.jpg": (lambda: separate_scans(30_000, BIG), LIMITED),
    "twenty scans.jpg": (lambda: scan_bomb(14, BIG, True), opens(BIG, BIG)),
    "scans of little.jpg": (lambda: scan_bomb(30_000, 32, True), LIMITED),
    # Phones store a film behind a photograph, which has what looks like many scans.
    "film behind.jpg": (lambda: jpeg_with() + b"\xff\xda" * 200, COMPLETE),
    "comments.gif": (lambda: gif_with(b"!\xfe\0" * 1_000_000), LIMITED),
    "comment.gif": (lambda: gif_with(b"!\xfe" + b"\1A" * 500_000 + b"\0"), LIMITED),
    "long comment.gif": (lambda: gif_with(b"!\xfe" + (b"\xff" + b"A" * 255) * 4_000 + b"\0"), COMPLETE),
    "comments.jpg": (lambda: jpeg_with(segment(0xFE, b"") * 500_000), LIMITED),
    "crumbs.jpg": (lambda: jpeg_with(*in_segments(b"A") * 300_000), LIMITED),
    "long comments.jpg": (lambda: jpeg_with(segment(0xFE, b"A" * 65_000) * 300), LIMITED),
    "chunks.png": (lambda: png_with(chunk(b"prVt", b"") * 300_000), LIMITED),
    "last chunks.png": (lambda: png_ending_with(chunk(b"prVt", b"") * 300_000), LIMITED),
    "no pixels.png": (lambda: png_with(chunk(b"IDAT", b"") * 200_000), COMPLETE),
    "last words.png": (lambda: png_ending_with(chunk(b"cHRM", b"\1\2\3\4" * 5 * 2**20)), LIMITED),
    "text.png": (lambda: png_with(chunk(b"tEXt", b"a\0" + b"b" * 17 * 2**20)), LIMITED),
    "text bomb.png": (lambda: png_with(text_bomb(b"zTXt", b"Comment\0\0")), refused_with("MAX_TEXT")),
    "last text bomb.png": (lambda: png_ending_with(text_bomb(b"zTXt", b"Comment\0\0")), refused_with("too large")),
    "words bomb.png": (lambda: png_with(text_bomb(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0")), refused_with("MAX_TEXT")),
    "profile bomb.png": (lambda: png_with(text_bomb(b"iCCP", b"sRGB\0\0")), refused_with("MAX_TEXT")),
    "texts.png": (
        lambda: png_with(chunk(b"zTXt", b"Comment\0\0" + deflated_zeros(2**20)) * 70),
        refused_with("MAX_TEXT"),
    ),
    "more pixels.png": (lambda: PNG_HEAD + chunk(b"IDAT", deflated_zeros(2**28)) + PNG_END, opens(32, 32)),
    "fractions.jpg": (lambda: jpeg_with(*in_segments(exif_of_fractions(500_000))), LIMITED),
    "some fractions.jpg": (lambda: jpeg_with(*in_segments(exif_of_fractions(140_000))), COMPLETE),
    "fractions.png": (lambda: png_with(chunk(b"eXIf", exif_of_fractions(500_000))), LIMITED),
    "fractions.webp": (lambda: webp_with(EXIF=exif_of_fractions(500_000)), LIMITED),
    "hexadecimal.png": (lambda: png_with(raw_profile(exif(entry(0x0112, 3, 1, 3)))), opens(32, 32)),
    "hexadecimal fractions.png": (lambda: png_with(raw_profile(exif_of_fractions(200_000))), LIMITED),
    "prefixes.png": (lambda: png_with(chunk(b"eXIf", b"Exif\0\0" * 500_000)), LIMITED),
    "prefixed fractions.jpg": (lambda: jpeg_with(*in_segments(b"Exif\0\0" * 9 + exif_of_fractions(500_000))), LIMITED),
    "fractions.tif": (lambda: tiff(32, 32, (282, 5, 500_000, bytes(4_000_000)), data=bytes(1024)), LIMITED),
    "same place.jpg": (lambda: jpeg_with(*in_segments(exif_of_one_place(7, 50_000))), LIMITED),
    "index.jpg": (lambda: jpeg_with(segment(0xE2, b"MPF\0" + exif_of_one_place(3, 25_000))), LIMITED),
    "pictures.mpo": (lambda: jpeg_with(segment(0xE2, b"MPF\0" + exif(entry(0xB001, 4, 1, 2**32 - 1)))), EITHER),
    "tags.tif": (tag_bomb, LIMITED),
    "hidden tags.tif": (hidden_directory, LIMITED),
    "strips.tif": (lambda: tiff(32, 32, (273, 1, 2**20, bytes([200]) * 2**20), (278, 4, 1, 1)), LIMITED),
    "overlapping tiles.tif": (overlapping_tiles, LIMITED),
    "strips outside.tif": (lambda: tiff(32, 32, (273, 4, 1, 2**32 - 2), data=bytes(1024)), UNREAD),
    "endless tag.tif": (lambda: tiff(32, 32, (700, 1, 2**32 - 1, 4096), data=bytes(1024)), EITHER),
    "loop.tif": (looped_tiff, opens(32, 32)),
    "no rows.tif": (lambda: tiff(32, 32, (278, 4, 1, 0), data=bytes(1024)), EITHER),
    "samples.tif": (lambda: tiff(32, 32, (277, 3, 1, 65_535), data=bytes(1024)), UNREAD),
    "entries.tif": (lambda: b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 2**60) + bytes(2**16), UNREAD),
    "lines.bmp": (lambda: run_length_bmp(BIG, b"\1\7\0\0" * BIG), LIMITED),
    "some lines.bmp": (lambda: run_length_bmp(2_000, b"\1\7\0\0" * 2_000), opens(2_000, 2_000)),
    "jumps.bmp": (lambda: run_length_bmp(2_000, b"\0\2\xff\xff" * 500), EITHER),
    "head.bmp": (lambda: BMP[:14] + struct.pack("<I", 2**32 - 1) + BMP[18:], DAMAGED),
    "upside down.bmp": (lambda: BMP[:22] + struct.pack("<i", -32) + BMP[26:], opens(32, 32)),
    "depth.bmp": (lambda: BMP[:22] + struct.pack("<i", -(2**31)) + BMP[26:], EITHER),
    "frames.webp": (lambda: flood_of_frames(50_000), opens(32, 32)),
    "frames.gif": (lambda: many_frames(5_000), COMPLETE),
    "says more.webp": (lambda: WEBP[:4] + struct.pack("<I", 2**32 - 10) + WEBP[8:], EITHER),
    # Broken in one place.
    "wrong sum.png": (lambda: PNG_HEAD[:-1] + b"\0" + PNG_PIXELS + PNG_END, DAMAGED),
    "no data.png": (lambda: PNG_HEAD + PNG_END, DAMAGED),
    "no end.png": (lambda: PNG_HEAD + PNG_PIXELS, EITHER),
    "no palette.png": (lambda: png_header(32, 32, 8, 3) + PNG_PIXELS + PNG_END, EITHER),
    "two headers.png": (lambda: png_with(png_header(64, 64)[8:]), DAMAGED),
    "interlaced.png": (interlaced_png, COMPLETE),
    "cut interlaced.png": (lambda: truncate(interlaced_png()), DAMAGED),
    "coefficients are noise.jpg": (lambda: JPEG[: JPEG.index(b"\xff\xda") + 14] + noise(3000), EITHER),
    "padding.jpg": (lambda: b"\xff\xd8\xff\xe0\0\2" + b"\xff" * 200_000, LIMITED),
    "padding between scans.jpg": (
        lambda: PROGRESSIVE[:LAST_SCAN] + b"\xff" * 4_000_000 + PROGRESSIVE[LAST_SCAN:],
        LIMITED,
    ),
    "components.jpg": (lambda: jpeg_with(segment(0xC0, b"\x08\0\x20\0\x20\x03" + b"\1\x11\0" * 21_000) * 63), LIMITED),
    "profiles.png": (lambda: png_with(chunk(b"iCCP", b"x\0\0" + deflated_zeros(2**20 - 1)) * 1_000), LIMITED),
    "no tables.jpg": (lambda: JPEG.replace(b"\xff\xdb", b"\xff\xfe").replace(b"\xff\xc4", b"\xff\xfe"), DAMAGED),
    "wrong table.jpg": (lambda: JPEG.replace(b"\xff\xc4\0\x1f\0", b"\xff\xc4\0\x1f\x7f"), DAMAGED),
    "twelve bits.jpg": (
        lambda: JPEG.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),
        refused_with("more than 8 bits a colour"),
    ),
    "lossless.jpg": (lambda: JPEG.replace(b"\xff\xc0", b"\xff\xc3"), EITHER),
    "arithmetic.jpg": (lambda: JPEG.replace(b"\xff\xc0", b"\xff\xc9"), EITHER),
    "wrong code size.gif": (lambda: GIF[: GIF_FRAME + 10] + b"\x63" + GIF[GIF_FRAME + 11 :], DAMAGED),
    # Files of two formats at once.
    "picture and archive.jpg": (lambda: JPEG + archive(), COMPLETE),
    "picture and page.png": (lambda: PNG + HTML, COMPLETE),
    "page inside.png": (lambda: png_with(chunk(b"tEXt", b"Comment\0" + HTML)), COMPLETE),
    "page inside.jpg": (lambda: jpeg_with(segment(0xFE, HTML)), COMPLETE),
    "script.gif": (script_gif, opens(10_799, 32)),
    "picture and program.bmp": (lambda: BMP + b"MZ" + noise(99), COMPLETE),
    "page first.jpg": (lambda: HTML + JPEG, refused_with("an HTML page")),
    "archive first.jpg": (lambda: archive() + JPEG, refused_with("a ZIP archive")),
    # Unusual, and whole.
    "pages.tif": (lambda: encoded(PICTURE, "TIFF", save_all=True, append_images=[PICTURE] * 99), COMPLETE),
    "huge exif.jpg": (lambda: jpeg_with(*in_segments(long_exif(64_000))), COMPLETE),
    "huge exif.png": (lambda: png_with(chunk(b"eXIf", long_exif(10_000_000))), COMPLETE),
    "broken exif.jpg": (lambda: jpeg_with(segment(0xE1, b"Exif\0\0II*\0" + b"\xff" * 999)), COMPLETE),
    "thumbnails.jpg": (thumbnails, COMPLETE),
    "huge profile.jpg": (lambda: jpeg_with(*profile_segments(noise(3_000_000))), COMPLETE),
    "broken profile.jpg": (lambda: jpeg_with(*profile_segments(b"\xff" * 99)), COMPLETE),
    "part of a profile.jpg": (lambda: jpeg_with(*profile_segments(colour_profile(), claimed=200)), COMPLETE),
    "broken profile.png": (lambda: png_with(chunk(b"iCCP", b"x\0\0" + noise(500))), COMPLETE),
    "broken profile.webp": (lambda: webp_with(ICCP=noise(500)), COMPLETE),
    "broken profile.tif": (lambda: encoded(PICTURE, "TIFF", icc_profile=noise(500)), COMPLETE),
    **{name: (lambda: b"\0", NO_IMAGE) for name in NAMES},
}


FILES = {name: HostileFile(make, outcome) for name, (make, outcome) in MAKERS.items()}


# Paths that are not regular files.


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


PLACES: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe.jpg": (make_pipe, "a pipe, a socket or a device"),
    "endless.jpg": (link_to_device, "a pipe, a socket or a device"),
    "circle.jpg": (lambda path: path.symlink_to(path.name), "cannot be read"),
    "nowhere.jpg": (lambda path: path.symlink_to("gone.jpg"), "no such file"),
    "folder.jpg": (Path.mkdir, "a folder"),
}
